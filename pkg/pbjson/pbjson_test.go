package pbjson

import (
	"encoding/json"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/context/attribute_context"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/typepb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func TestX13_TheForm(t *testing.T) {
	for _, c := range []string{
		`{}`,
		`{"work_item_id":"wi_1","plan_status":"needs_input","a_int32":-2147483648,"a_sint64":-9223372036854775808,"a_uint32":4294967295,"a_fixed64":18446744073709551615}`,
		`{"a_float":1.5,"a_double":0.1,"a_bool":true,"a_bytes":"AP+/"}`,
		`{"a_float":"NaN","a_double":"-Infinity"}`,
		`{"a_double":1e+100}`,
		`{"created_at":"2026-01-02T03:04:05.000006Z","lease":"1.500s"}`,
		`{"created_at":"0001-01-01T00:00:00.000000Z","lease":"-0.000000001s"}`,
		`{"created_at":"9999-12-31T23:59:59.999999Z","lease":"30s"}`,
		`{"args":{"a":[1,2.5,null,true,"x",{}],"b":{"c":null}},"any":null,"items":[]}`,
		`{"any":{"k":[]}}`,
		`{"self":{"self":{}},"selves":[{},{"a_bool":true}]}`,
		`{"texts":["","a"],"numbers":[1,-2],"statuses":["unspecified","draft","odd"]}`,
		`{"labels":{"a":"1","b":"2"},"by_number":{"-5":{"a_int32":1},"7":{}},"by_flag":{"false":"draft","true":"odd"}}`,
		`{"reason":"","limit":0}`,
		`{"left":""}`,
		`{"right":0}`,
		`{"anys":[null,1,"a"]}`,
		`{"work_item_id":"\"\\\n\r\t\u0001\u001f/ü語🙂"}`,
	} {
		same(t, c, c)
		require.True(t, json.Valid([]byte(c)))
	}
}

func TestReadingIsLiberalInForm(t *testing.T) {
	for in, want := range map[string]string{
		" { \"workItemId\" : \"a\" ,\n\t\"planStatus\":\"PLAN_STATUS_DRAFT\" } \r\n": `{"work_item_id":"a","plan_status":"draft"}`,
		`{"plan_status":"plan_status"}`:                                              "",
		`{"plan_status":2}`:                                                          `{"plan_status":"needs_input"}`,
		`{"plan_status":99}`:                                                         `{"plan_status":99}`,
		`{"plan_status":"ODD"}`:                                                      `{"plan_status":"odd"}`,
		`{"a_int32":5.0,"a_sint64":1e3,"a_uint32":2E0,"a_fixed64":4.0}`:              `{"a_int32":5,"a_sint64":1000,"a_uint32":2,"a_fixed64":4}`,
		`{"created_at":"2026-01-02T05:04:05.123456789+02:00"}`:                       `{"created_at":"2026-01-02T03:04:05.123456Z"}`,
		`{"created_at":"2026-01-02T03:04:05Z","lease":"0.5s"}`:                       `{"created_at":"2026-01-02T03:04:05.000000Z","lease":"0.500s"}`,
		`{"a_bytes":"_-8"}`:                                                          `{"a_bytes":"/+8="}`,
		`{"work_item_id":"\u00fc\ud83d\ude42\/\b\f"}`:                                `{"work_item_id":"ü🙂/\u0008\u000c"}`,
		`{"work_item_id":null,"self":null,"texts":null,"labels":null,"limit":null}`:  `{}`,
		`{"left":null,"right":1}`:                                                    `{"right":1}`,
		`{"a_double":-0.0}`:                                                          `{"a_double":-0}`,
	} {
		if want == "" {
			require.Error(t, Unmarshal([]byte(in), newEverything()), in)
			continue
		}
		same(t, in, want)
	}
}

func TestX5_RefusalsNameTheField(t *testing.T) {
	for _, c := range []struct {
		in     string
		reason fault.Reason
		field  string
		says   string
	}{
		{`{"nope":1}`, fault.UnknownField, "nope", "nope"},
		{`{"self":{"selves":[{},{"x":1}]}}`, fault.UnknownField, "self.selves[1].x", "self.selves[1].x"},
		{`{"by_number":{"5":{"x":1}}}`, fault.UnknownField, `by_number["5"].x`, "is not a field"},
		{`{"":1}`, fault.UnknownField, `""`, "not a field"},
		{
			`{"plan_status":"done"}`, fault.InvalidArgument, "plan_status",
			`"done", must be one of draft, needs_input, odd`,
		},
		{`{"statuses":["draft","x"]}`, fault.InvalidArgument, "statuses[1]", `"x"`},
		{`{"plan_status":true}`, fault.InvalidArgument, "plan_status", "must be one of"},
		{`{"a_int32":2147483648}`, fault.InvalidArgument, "a_int32", "2147483648, must be a whole number from " +
			"-2147483648 to 2147483647"},
		{`{"a_int32":1.5}`, fault.InvalidArgument, "a_int32", "whole"},
		{`{"a_int32":"5"}`, fault.InvalidArgument, "a_int32", "whole"},
		{`{"a_sint64":9223372036854775808}`, fault.InvalidArgument, "a_sint64", "9223372036854775808"},
		{`{"a_sint64":1e30}`, fault.InvalidArgument, "a_sint64", "1e30"},
		{`{"a_uint32":-1}`, fault.InvalidArgument, "a_uint32", "from 0"},
		{`{"a_uint32":-1.0}`, fault.InvalidArgument, "a_uint32", "from 0"},
		{`{"a_fixed64":18446744073709551616}`, fault.InvalidArgument, "a_fixed64", "from 0"},
		{`{"a_float":1e39}`, fault.InvalidArgument, "a_float", "32-bit"},
		{`{"a_double":"1"}`, fault.InvalidArgument, "a_double", "NaN"},
		{`{"a_bool":"true"}`, fault.InvalidArgument, "a_bool", "true or false"},
		{`{"a_bytes":"*"}`, fault.InvalidArgument, "a_bytes", "base64"},
		{`{"work_item_id":5}`, fault.InvalidArgument, "work_item_id", "is 5, must be a string"},
		{`{"work_item_id":{}}`, fault.InvalidArgument, "work_item_id", "must be a string"},
		{`{"self":[]}`, fault.InvalidArgument, "self", "must be an object"},
		{`{"texts":"a"}`, fault.InvalidArgument, "texts", "must be a list"},
		{`{"texts":[null]}`, fault.InvalidArgument, "texts[0]", "must be a string"},
		{`{"labels":[]}`, fault.InvalidArgument, "labels", "must be an object"},
		{`{"by_number":{"x":{}}}`, fault.InvalidArgument, `by_number["x"]`, "key of type sint32"},
		{`{"by_flag":{"yes":"odd"}}`, fault.InvalidArgument, `by_flag["yes"]`, "key of type bool"},
		{`{"created_at":"yesterday"}`, fault.InvalidArgument, "created_at", "RFC 3339"},
		{`{"created_at":"2026-02-31T00:00:00.000000Z"}`, fault.InvalidArgument, "created_at", "RFC 3339"},
		{`{"created_at":5}`, fault.InvalidArgument, "created_at", "RFC 3339"},
		{`{"created_at":"0000-01-01T00:00:00.000000Z"}`, fault.InvalidArgument, "created_at", "years 1 to 9999"},
		{`{"lease":"5"}`, fault.InvalidArgument, "lease", "seconds"},
		{`{"lease":"1.s"}`, fault.InvalidArgument, "lease", "seconds"},
		{`{"lease":"--1s"}`, fault.InvalidArgument, "lease", "seconds"},
		{`{"lease":"315576000001s"}`, fault.LimitExceeded, "lease", "10000 years"},
		{`{"args":5}`, fault.InvalidArgument, "args", "object"},
		{`{"items":{}}`, fault.InvalidArgument, "items", "list"},
		{`{"args":{"a":1e999}}`, fault.InvalidArgument, "args", "64-bit"},
		{`{"args":{"":1,"":2}}`, fault.InvalidArgument, `args[""]`, "twice"},
		{`{"a_bool":true,"aBool":true}`, fault.InvalidArgument, "a_bool", "twice"},
		{`{"labels":{"a":"1","a":"2"}}`, fault.InvalidArgument, `labels["a"]`, "twice"},
		{`{"left":"a","right":1}`, fault.InvalidArgument, "right", "side"},
		{`5`, fault.InvalidArgument, "", "must be an object"},
	} {
		err := Unmarshal([]byte(c.in), newEverything())
		require.ErrorIs(t, err, c.reason, c.in)
		require.ErrorContains(t, err, c.says, c.in)
		e := fault.From(err)
		require.Equal(t, c.field, e.Metadata()["field"], c.in)
		require.Equal(t, c.field, e.Violations()[0].Field, c.in)
	}
}

func TestMalformedJSON(t *testing.T) {
	for _, in := range []string{
		``, ` `, `{`, `{"a_bool"`, `{"a_bool":`, `{"a_bool":true`, `{"a_bool":true,}`, `{"a_bool" true}`,
		`{a_bool:true}`, `{,}`,
		`{"a_bool":tru}`, `{"texts":["a",]}`, `{"texts":["a" "b"]}`, `{"texts":[`, `{"work_item_id":"a`,
		`{"work_item_id":"a\`, `{"work_item_id":"\x"}`,
		`{"work_item_id":"\u12"}`, `{"work_item_id":"\ud800"}`, `{"work_item_id":"\ud800\u0041"}`,
		"{\"work_item_id\":\"\n\"}", "{\"work_item_id\":\"\xff\"}",
		`{"a_int32":01}`, `{"a_int32":-}`, `{"a_double":1.}`, `{"a_double":1e}`, `{} {}`, "{}\x00", `{"self":nul}`,
		`{"args":{"a":}}`, `{"a_int32":1 2}`,
		`{"any":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
		strings.Repeat(`{"self":`, 5000) + `{}` + strings.Repeat("}", 5000),
	} {
		require.ErrorIs(t, Unmarshal([]byte(in), newEverything()), fault.MalformedJSON, clip(in))
	}
}

func TestUnmarshalDropsEarlierContent(t *testing.T) {
	m := &typepb.Type{Name: "old", Oneofs: []string{"a"}}
	require.NoError(t, Unmarshal([]byte(`{"syntax":"proto3"}`), m))
	require.Equal(t, `{"syntax":"proto3"}`, text(t, m))
}

func TestGeneratedTypes(t *testing.T) {
	typ := &typepb.Type{
		Name: "t", Syntax: typepb.Syntax_SYNTAX_EDITIONS, Edition: "2026",
		Fields: []*typepb.Field{{
			Kind: typepb.Field_TYPE_BOOL, Cardinality: typepb.Field_CARDINALITY_REPEATED, Number: 3, Packed: true,
		}},
	}
	require.Equal(t,
		`{"name":"t","fields":[{"kind":"type_bool","cardinality":"repeated","number":3,"packed":true}],"syntax":"editions","edition":"2026"}`, text(t, typ))
	// proto2, with presence everywhere
	fd := &descriptorpb.FieldDescriptorProto{
		Name: proto.String(""),
		Type: descriptorpb.FieldDescriptorProto_TYPE_SINT64.Enum(),
	}
	require.Equal(t, `{"name":"","type":"sint64"}`, text(t, fd))

	require.Equal(t, `"2026-01-02T03:04:05.000006Z"`,
		text(t, Timestamp(time.Date(2026, 1, 2, 3, 4, 5, 6999, time.UTC))))
	require.Equal(t, `[1,"a"]`, text(t, must.Value(structpb.NewList([]any{1, "a"}))(t)))
	require.Equal(t, `null`, text(t, &structpb.Value{}))
	ts := &timestamppb.Timestamp{}
	require.NoError(t, Unmarshal([]byte(`"2026-01-02T03:04:05.5Z"`), ts))
	require.Equal(t, 500*time.Millisecond, time.Duration(ts.AsTime().Nanosecond()))
}

func TestAppendRefusesWhatJSONCannotSay(t *testing.T) {
	deep := structpb.NewNullValue()
	for range 200 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for _, m := range []proto.Message{
		&timestamppb.Timestamp{Seconds: maxSeconds + 1},
		&timestamppb.Timestamp{Nanos: -1},
		&durationpb.Duration{Seconds: 1, Nanos: -1},
		&durationpb.Duration{Seconds: maxDuration + 1},
		&typepb.Type{Name: "\xff"},
		structpb.NewNumberValue(math.NaN()),
		deep,
	} {
		out, err := Append([]byte("kept"), m)
		require.Error(t, err)
		require.Equal(t, "kept", string(out))
	}
	require.Equal(t, "kept{}", string(must.Value(Append([]byte("kept"), &typepb.Type{}))(t)))
	require.Equal(t, "{}", text(t, (*typepb.Type)(nil)))
}

// A duration that is well written and too long is refused as that, with the limit.
func TestHowLongADurationMayBe(t *testing.T) {
	for in, reason := range map[string]fault.Reason{
		"315575999999s": "", "315576000000s": "", "-315576000000s": "", "315575999999.999999999s": "",
		"315576000001s": fault.LimitExceeded, "-315576000001s": fault.LimitExceeded,
		"999999999999999s": fault.LimitExceeded, "99999999999999999999999s": fault.LimitExceeded,
		"99999999999999999999999.5s":          fault.LimitExceeded,
		"99999999999999999999999.0123456789s": fault.InvalidArgument, "9999999999999x9s": fault.InvalidArgument,
		"99999999999999999999999": fault.InvalidArgument,
	} {
		err := Unmarshal([]byte(`"`+in+`"`), &durationpb.Duration{})
		if reason == "" {
			require.NoError(t, err, in)
			continue
		}
		require.ErrorIs(t, err, reason, in)
		require.ErrorContains(t, err, in)
		if reason == fault.LimitExceeded {
			require.ErrorContains(t, err, "at most 315576000000s (10000 years)")
			require.Equal(t, "315576000000s", fault.From(err).Metadata()["limit"])
		}
	}
}

func TestUpperSnake(t *testing.T) {
	for in, want := range map[string]string{
		"PlanStatus": "PLAN_STATUS", "HTTPRule": "HTTP_RULE", "A": "A",
		"Plan_Status": "PLAN_STATUS", "WaitKindV2": "WAIT_KIND_V2",
	} {
		require.Equal(t, want, upperSnake(in))
	}
}

func TestPlansAreMadeOnceUnderConcurrency(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			b, err := Append(nil, sample())
			if err != nil || Unmarshal(b, &attribute_context.AttributeContext_Request{}) != nil {
				panic("no round trip")
			}
		})
	}
	wg.Wait()
}

// sample has twelve fields, as a journal payload does.
func sample() *attribute_context.AttributeContext_Request {
	return &attribute_context.AttributeContext_Request{
		Id: "wi_01h455vb4pex5vsknk084sn02q", Method: "CreateWorkItem",
		Path: "work-items/wi_01h455vb4pex5vsknk084sn02q/plan.md",
		Host: "keeper", Scheme: "draft", Query: "ship the release, then say so",
		Time: Timestamp(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)),
		Size: 1234567890123, Protocol: "run_01h455vb4pex5vsknk084sn02q", Reason: "because it was asked for",
		Headers: map[string]string{"a": "b"}, Auth: &attribute_context.AttributeContext_Auth{Principal: "agent:keeper"},
	}
}

func BenchmarkAppend(b *testing.B) {
	m, buf := sample(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Append(buf, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	line, m := must.Value(Append(nil, sample()))(b), &attribute_context.AttributeContext_Request{}
	b.ReportAllocs()
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if err := Unmarshal(line, m); err != nil {
			b.Fatal(err)
		}
	}
}

// X13: REST takes 64-bit integers as ProtoJSON writes them; journal lines and tools do not.
func TestX13_QuotedIntegers(t *testing.T) {
	m := &workv1.UpdateWorkItemRequest{}
	for text, want := range map[string]int64{`"7"`: 7, `7`: 7, `"-9223372036854775808"`: math.MinInt64, `"0"`: 0} {
		require.NoError(t, UnmarshalProtoJSON([]byte(`{"expected_revision":`+text+`}`), m), text)
		require.Equal(t, want, m.GetExpectedRevision())
	}
	for _, text := range []string{`""`, `"x"`, `"07"`, `"+7"`, `" 7"`, `"7.0"`, `"9223372036854775808"`} {
		require.ErrorIs(t, UnmarshalProtoJSON([]byte(`{"expected_revision":`+text+`}`), m), fault.InvalidArgument, text)
	}
	require.ErrorIs(t, Unmarshal([]byte(`{"expected_revision":"7"}`), m), fault.InvalidArgument)
	list := &workv1.ListWorkItemsRequest{}
	require.ErrorIs(t, UnmarshalProtoJSON([]byte(`{"page_size":"7"}`), list), fault.InvalidArgument,
		"a 32-bit integer is never a string")
}
