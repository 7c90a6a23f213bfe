package journal

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
	"quartet/pkg/jsontext"
)

func registry() *Registry { return NewRegistry(errdetails.File_google_rpc_error_details_proto) }

// TestB1_LineRoundTrip: what is written is JSON to everybody and the same
// event to us.
func TestB1_LineRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		r := RawEvent{Event: Event{WalSeq: rapid.Uint64Min(1).Draw(t, "wal_seq")}}
		want := &r.Event
		for _, key := range []string{
			"agent_id", "event_id", "namespace", "plane", "session_id", "task_id", "step_id", "work_item_id",
			"actor_namespace", "actor_agent_id", "actor_run_id", "principal", "role", "method", "request_id",
			"request_hash", "traceparent", "readiness_from", "readiness_to", "readiness_reason",
		} {
			*r.field([]byte(key)) = text.Draw(t, key)
		}
		want.Type = "error_info"
		want.CreatedAt = time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "created_at")).UTC()
		want.Payload = &errdetails.ErrorInfo{Reason: text.Draw(t, "reason"), Metadata: map[string]string{"a b": text.Draw(t, "v")}}
		line, err := appendLine(nil, want)
		require.NoError(t, err)
		require.True(t, json.Valid(line), "%s", line)
		var fields struct {
			RequestID string    `json:"request_id"`
			CreatedAt time.Time `json:"created_at"`
		}
		require.NoError(t, json.Unmarshal(line, &fields))
		require.Equal(t, want.RequestID, fields.RequestID)
		require.True(t, want.CreatedAt.Equal(fields.CreatedAt))
		raw, err := ParseLine(line)
		require.NoError(t, err)
		got, err := raw.Decode(registry())
		require.NoError(t, err)
		require.True(t, proto.Equal(want.Payload, got.Payload))
		got.Payload = want.Payload
		require.Equal(t, want, got)
		typ, agent := LineType(line)
		require.Equal(t, want.Type, typ)
		require.Equal(t, want.AgentID, agent)
	})
}

func TestStringThatIsNotUTF8(t *testing.T) {
	require.Equal(t, "\"a\ufffdb\\u0001\\\"\\\\\\n\"", string(jsontext.AppendString(nil, "a\xffb\x01\"\\\n")))
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"wal_seq":1,"event_type":"x","agent_id":"a","created_at":"2026-01-02T03:04:05.000006Z","payload":{"a":[1,"]}"]}}`))
	f.Add([]byte(`{"wal_seq":1`))
	f.Add([]byte(`{"wal_seq":1,"event_type":"\`))
	f.Add([]byte(`{"wal_seq":1,"event_type":"x","agent_id":"\u12`))
	f.Fuzz(func(t *testing.T, line []byte) {
		LineType(line)
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
		_, err := ParseLine([]byte(line))
		require.ErrorIs(t, err, errLine, line)
	}
	raw, err := ParseLine([]byte(` { "event_type" : "x\n" , "new" : [ {} ] , "wal_seq" : 3 , "created_at":"2026-01-02T03:04:05+02:00"} `))
	require.NoError(t, err)
	require.Equal(t, "x\n", raw.Type)
	require.Equal(t, 1, raw.CreatedAt.UTC().Hour())
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"WorkItemCreated": "work_item_created", "HTTPDone": "http_done", "StepID": "step_id", "A": "a", "TaskQueuedV2": "task_queued_v2",
	} {
		require.Equal(t, want, snake(in))
	}
}

func TestX2_MemoryIsBounded(t *testing.T) {
	m := newMemory(3)
	key := func(i uint64) memoryKey { return keyOf("n", "p", "m", string(rune('a'+i))) }
	now := time.Unix(1_700_000_000, 0)
	for i := range uint64(5) {
		m.add(key(i), remembered{first: i + 1, count: 1, unix: unix32(now)})
	}
	_, ok := m.lookup(key(1), now)
	require.False(t, ok, "the oldest went first")
	_, ok = m.lookup(key(2), now)
	require.True(t, ok)
	_, ok = m.lookup(key(2), now.Add(memoryTerm+time.Second))
	require.False(t, ok, "24 h are over")
	m.add(key(2), remembered{first: 9, count: 1, unix: unix32(now.Add(25 * time.Hour))})
	require.Len(t, m.entries, 1, "what is older than 24 h goes")
	_, ok = m.lookup(key(2), now.Add(25*time.Hour))
	require.True(t, ok, "an id that is used again counts from its new use")
	require.NotEqual(t, keyOf("ab", "c", "", ""), keyOf("a", "bc", "", ""))
}

func TestX2_ArgsHashLeavesRequestIDOut(t *testing.T) {
	a, err := hashArgs(&errdetails.RequestInfo{RequestId: "1", ServingData: "x"})
	require.NoError(t, err)
	b, err := hashArgs(&errdetails.RequestInfo{RequestId: "2", ServingData: "x"})
	require.NoError(t, err)
	c, err := hashArgs(&errdetails.RequestInfo{RequestId: "1", ServingData: "y"})
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	got, ok := parseHash(hashText(a))
	require.True(t, ok)
	require.Equal(t, a, got)
}

func TestStall(t *testing.T) {
	var s stall
	at := time.Unix(0, 0)
	s.begin(at)
	require.Zero(t, s.now(at.Add(stallThreshold-1)), "a slow disk is not a stall")
	require.Equal(t, 5*time.Second, s.now(at.Add(5*time.Second)))
	s.begin(at.Add(time.Second))
	s.end(at.Add(6 * time.Second))
	require.Zero(t, s.now(at.Add(time.Hour)))
	require.Equal(t, 6*time.Second, s.sum(at.Add(time.Hour)))
}
