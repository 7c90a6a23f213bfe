package event

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/jsontext"
	"quartet/pkg/must"
)

func registry() *Registry { return NewRegistry(errdetails.File_google_rpc_error_details_proto) }

// TestB1_LineRoundTrip: what is written is JSON to everybody and the same
// event to us.
func TestB1_LineRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		r := Raw{Event: Event{WalSeq: rapid.Uint64Min(1).Draw(t, "wal_seq")}}
		want := &r.Event
		for _, key := range []string{
			"agent_id", "event_id", "namespace", "plane", "session_id", "task_id", "step_id", "work_item_id",
			"actor_namespace", "actor_agent_id", "actor_run_id", "actor_key_id", "principal", "role", "method",
			"request_id",
			"request_hash", "traceparent", "readiness_from", "readiness_to", "readiness_reason",
		} {
			*r.field([]byte(key)) = text.Draw(t, key)
		}
		want.Type = "error_info"
		want.CreatedAt = time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "created_at")).UTC()
		want.Payload = &errdetails.ErrorInfo{Reason: text.Draw(t, "reason"), Metadata: map[string]string{
			"a b": text.Draw(t, "v"),
		}}
		line := must.Value(AppendLine(nil, want))(t)
		require.True(t, json.Valid(line), "%s", line)
		var fields struct {
			RequestID string    `json:"request_id"`
			CreatedAt time.Time `json:"created_at"`
		}
		require.NoError(t, json.Unmarshal(line, &fields))
		require.Equal(t, want.RequestID, fields.RequestID)
		require.True(t, want.CreatedAt.Equal(fields.CreatedAt))
		got := must.Value(must.Value(ParseLine(line))(t).Decode(registry()))(t)
		require.True(t, proto.Equal(want.Payload, got.Payload))
		got.Payload = want.Payload
		require.Equal(t, want, got)
		typ, agent := framelog.TypeOfLine(line)
		require.Equal(t, want.Type, typ)
		require.Equal(t, want.AgentID, agent)
	})
}

func TestStringThatIsNotUTF8(t *testing.T) {
	require.Equal(t, "\"a\ufffdb\\u0001\\\"\\\\\\n\"", string(jsontext.AppendString(nil, "a\xffb\x01\"\\\n")))
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(
		`{"wal_seq":1,"event_type":"x","agent_id":"a","created_at":"2026-01-02T03:04:05.000006Z","payload":{"a":[1,"]}"]}}`))
	f.Add([]byte(`{"wal_seq":1`))
	f.Add([]byte(`{"wal_seq":1,"event_type":"\`))
	f.Add([]byte(`{"wal_seq":1,"event_type":"x","agent_id":"\u12`))
	f.Fuzz(func(t *testing.T, line []byte) {
		framelog.TypeOfLine(line)
		raw, err := ParseLine(line)
		if err != nil {
			return
		}
		require.NotEmpty(t, raw.Type)
		require.NotZero(t, raw.WalSeq)
		_, _ = raw.Decode(registry())
	})
}

func TestParseLineAgreesWithJSON(t *testing.T) {
	for _, line := range []string{
		``, `[]`, `{}`, `{"wal_seq":1}`, `{"wal_seq":"1","event_type":"x"}`, `{"wal_seq":1,"event_type":7}`,
		`{"wal_seq":1 "event_type":"x"}`, `{"wal_seq":1,"event_type":"x"} {}`, `{"wal_seq":,"event_type":"x"}`,
		`{"wal_seq":1,"event_type":"x","created_at":"yesterday"}`, `{"wal_seq":1,"event_type":"x","payload":{"a":}`,
	} {
		must.Refuse(ParseLine([]byte(line)))(t, errLine, line)
	}
	raw, err := ParseLine(
		[]byte(` { "event_type" : "x\n" , "new" : [ {} ] , "wal_seq" : 3 , "created_at":"2026-01-02T03:04:05+02:00"} `))
	require.NoError(t, err)
	require.Equal(t, "x\n", raw.Type)
	require.Equal(t, 1, raw.CreatedAt.UTC().Hour())
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"WorkItemCreated": "work_item_created", "HTTPDone": "http_done", "StepID": "step_id", "A": "a",
		"TaskQueuedV2": "task_queued_v2",
	} {
		require.Equal(t, want, framelog.TypeOfMessage(in))
	}
}
