package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/rpc"
)

// open is an event stream over HTTP.
type open struct {
	t    *testing.T
	scan *bufio.Scanner
	resp *http.Response
}

func (r *rig) events(t *testing.T, query string, header ...string) *open {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+"/v1/events"+query, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, resp.Body.Close()) })
	require.Equal(t, 200, resp.StatusCode)
	o := &open{t: t, scan: bufio.NewScanner(resp.Body), resp: resp}
	o.scan.Buffer(nil, 1<<20)
	return o
}

// next returns the next line of JSON.
func (o *open) next() *eventv1.WatchEventsResponse {
	o.t.Helper()
	require.True(o.t, o.scan.Scan(), "the stream ended: %v", o.scan.Err())
	return o.line()
}

func (o *open) line() *eventv1.WatchEventsResponse {
	o.t.Helper()
	var frame struct {
		Result json.RawMessage `json:"result"`
	}
	require.NoError(o.t, json.Unmarshal(o.scan.Bytes(), &frame), o.scan.Text())
	m := &eventv1.WatchEventsResponse{}
	require.NoError(o.t, protojson.Unmarshal(frame.Result, m), o.scan.Text())
	return m
}

func (o *open) rest() []*eventv1.Event {
	o.t.Helper()
	var out []*eventv1.Event
	for o.scan.Scan() {
		out = append(out, o.line().GetEvent())
	}
	require.NoError(o.t, o.scan.Err())
	return out
}

func TestX10_EventsOverHTTP(t *testing.T) {
	r := newRig(t)
	live := r.events(t, "")
	require.Equal(t, "application/x-ndjson", live.resp.Header.Get("Content-Type"))
	id := r.create("keeper", "a")
	require.NotEmpty(t, live.next().GetHeartbeatCursor(), "a stream says at once where it stands")
	ev := live.next().GetEvent()
	require.Equal(t, "work_item_created", ev.GetEventType())
	require.Equal(t, []string{"work", "keeper", id, "default", "local"},
		[]string{ev.GetPlane(), ev.GetAgentId(), ev.GetWorkItemId(), ev.GetNamespace(), ev.GetPrincipal()})
	require.Equal(t, "runnable", ev.GetReadinessTo())
	require.Equal(t, "a", ev.GetPayload().GetFields()["work_item"].GetStructValue().
		GetFields()["objective"].GetStringValue())
	require.Regexp(t, "^evt_", ev.GetEventId())

	second := r.create("other", "b")
	all := r.events(t, "?from_start=true&stop_at_end=true").rest()
	require.Len(t, all, 2, "what belongs to the journal itself is not shown")
	require.Equal(t, second, all[1].GetWorkItemId())
	require.Len(t, r.events(t, "?cursor="+ev.GetCursor()+"&stop_at_end=true").rest(), 1)
	require.Empty(t, r.events(t, "?cursor="+all[1].GetCursor()+"&stop_at_end=true").rest())
	require.Empty(t, r.events(t, "?stop_at_end=true").rest(), "from now on there is nothing yet")
	for query, want := range map[string]int{
		"&agent_id=keeper": 1, "&agentId=nobody": 0, "&planes=work": 2, "&planes=task": 0, "&planes=task,work": 2,
		"&planes=task&planes=work":       2,
		"&event_types=work_item_created": 2, "&event_types=work_item_picked": 0, "&work_item_id=" + id: 1,
	} {
		require.Len(t, r.events(t, "?from_start=true&stop_at_end=true"+query).rest(), want, query)
	}
}

func TestX15_EventsStayInTheirNamespaceAndAgent(t *testing.T) {
	r := newRig(t)
	acme := "Bearer " + r.keys.Mint(rpc.Actor{Namespace: "acme", Principal: "olga", Role: rpc.RoleOperator})
	r.create("keeper", "default's")
	r.create("keeper", "acme's", "Authorization", acme)
	r.create("other", "acme's too", "Authorization", acme)
	const all = "?from_start=true&stop_at_end=true"
	require.Len(t, r.events(t, all).rest(), 1)
	require.Len(t, r.events(t, all, "Authorization", acme).rest(), 2)
	run := "Bearer " + r.keys.MintRun("acme", "keeper", "run_1")
	own := r.events(t, all, "Authorization", run).rest()
	require.Len(t, own, 1)
	require.Equal(t, "keeper", own[0].GetAgentId())
	require.Equal(t, 403, r.do(http.MethodGet, "/v1/events"+all+"&agent_id=other", "", "Authorization", run).status)
	for _, role := range []string{rpc.RoleWorker, rpc.RoleIntegration} {
		token := "Bearer " + r.keys.Mint(rpc.Actor{Namespace: "acme", Principal: "p", Role: role})
		require.Equal(t, 403, r.do(http.MethodGet, "/v1/events"+all, "", "Authorization", token).status)
	}
}

func TestX13_ServerSentEvents(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.Heartbeat = 20 * time.Millisecond })
	id := r.create("keeper", "a")
	s := r.events(t, "?from_start=true", "Accept", "text/html, text/event-stream;q=0.9")
	require.Equal(t, "text/event-stream", s.resp.Header.Get("Content-Type"))
	var lines []string
	for s.scan.Scan() && s.scan.Text() != "" {
		lines = append(lines, s.scan.Text())
	}
	require.Len(t, lines, 3)
	cursor, ok := strings.CutPrefix(lines[0], "id: ")
	require.True(t, ok)
	require.Equal(t, "event: work_item_created", lines[1])
	var data map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "data: ")), &data))
	require.Equal(t, id, data["workItemId"])
	require.Equal(t, cursor, data["cursor"])
	require.True(t, s.scan.Scan())
	require.Equal(t, ": heartbeat", s.scan.Text())
	require.True(t, s.scan.Scan())
	require.Equal(t, "id: "+strings.TrimPrefix(s.scan.Text(), "id: "), s.scan.Text())

	// A browser repeats its first address and says how far it came.
	second := r.create("keeper", "b")
	again := r.events(t, "?from_start=true&stop_at_end=true", "Last-Event-ID", cursor).rest()
	require.Len(t, again, 1)
	require.Equal(t, second, again[0].GetWorkItemId())
}

func TestHeartbeatsOverNDJSONResume(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.Heartbeat = 10 * time.Millisecond })
	beat := r.events(t, "?planes=agent").next()
	require.NotEmpty(t, beat.GetHeartbeatCursor())
	r.create("keeper", "a")
	events := 0
	for _, m := range r.events(t, "?stop_at_end=true&cursor="+beat.GetHeartbeatCursor()).rest() {
		if m != nil { // a slow read has heartbeats, which are no events, in between
			events++
		}
	}
	require.Equal(t, 1, events)
}

func TestBadEventRequests(t *testing.T) {
	r := newRig(t)
	good := vector{{plane: 1, parts: []position{{}}}}
	for query, reason := range map[string]string{
		"?cursor=junk": "CURSOR_INVALID", "?cursor=" + strings.Repeat("A", cursorMaxText+4): "CURSOR_INVALID",
		"?cursor=" + vector{{plane: 1, parts: []position{{seq: 999}}}}.encode(): "CURSOR_OUT_OF_RANGE",
		"?cursor=" + vector{{plane: 6, parts: []position{{}}}}.encode():         "CURSOR_OUT_OF_RANGE",
		"?cursor=" + vector{{plane: 1, parts: []position{{}, {}}}}.encode():     "CURSOR_OUT_OF_RANGE",
		"?from_start=true&cursor=" + good.encode():                              "INVALID_ARGUMENT",
		"?planes=boards": "INVALID_ARGUMENT", "?agent_id=A": "INVALID_ARGUMENT", "?work_item_id=x": "INVALID_ARGUMENT",
		"?event_types=A%20B": "INVALID_ARGUMENT", "?event_types=" + strings.Repeat("a,", 100) + "a": "LIMIT_EXCEEDED",
		"?colour=red": "UNKNOWN_FIELD", "?stop_at_end=perhaps": "INVALID_ARGUMENT",
	} {
		a := r.do(http.MethodGet, "/v1/events"+query, "")
		require.Equal(t, 400, a.status, query)
		require.Equal(t, reason, a.fault.Reason, query)
	}
	require.Equal(t, 405, r.do(http.MethodPost, "/v1/events", "").status)
}

func TestX10_EventsOverGRPC(t *testing.T) {
	r := newRig(t)
	r.create("keeper", "a")
	conn, err := r.gateway.deps.Conn("event")
	require.NoError(t, err)
	client := eventv1.NewEventServiceClient(conn)
	ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "default", Principal: "op", Role: rpc.RoleOperator})
	stream, err := client.WatchEvents(ctx, &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true})
	require.NoError(t, err)
	m, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "work_item_created", m.GetEvent().GetEventType())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	stream, err = client.WatchEvents(ctx, &eventv1.WatchEventsRequest{Cursor: "junk"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, fault.CursorInvalid)
}

// collected is a sink that stops after some events.
type collected struct {
	events []*eventv1.Event
	most   int
}

func (c *collected) JSON() bool   { return false }
func (c *collected) Flush() error { return nil }
func (c *collected) Abort(error)  {}

func (c *collected) Send(m *eventv1.WatchEventsResponse, _ []byte) error {
	if m.GetEvent() == nil {
		return nil
	}
	if len(c.events) == c.most {
		return io.ErrShortWrite
	}
	c.events = append(c.events, m.GetEvent())
	return nil
}

// TestX10_NoGapNoDuplicateAtAnyCursor writes frames of random shape into many
// journals, cuts streams at random events, goes on from their cursors while
// more is written, and wants each event once, in order within its journal.
func TestX10_NoGapNoDuplicateAtAnyCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(1, 3).Draw(t, "partitions")
		logs := map[string][]*journaltest.MemLog{}
		written := map[string][]string{} // by journal, what should be shown
		n := 0
		for _, p := range watched {
			for range parts {
				logs[p] = append(logs[p], journaltest.NewMemLog())
			}
		}
		write := func(plane string, part, lines int) {
			log := logs[plane][part]
			_, tail, err := log.Tail(context.Background())
			require.NoError(t, err)
			var body strings.Builder
			for range lines {
				n++
				kind, ns := rapid.SampledFrom([]string{"a_happened", "b_happened", journal.TypePartitionOpened}).
					Draw(t, "type"),
					rapid.SampledFrom([]string{"default", "acme"}).Draw(t, "namespace")
				fmt.Fprintf(&body,
					`{"wal_seq":%d,"event_type":%q,"agent_id":"keeper","event_id":"e%d","namespace":%q,"plane":%q,"created_at":"2026-01-01T00:00:%02d.000000Z","payload":{}}`+"\n",
					n, kind, n, ns, plane, rapid.IntRange(0, 59).Draw(t, "second"))
				if kind != journal.TypePartitionOpened && ns == "default" {
					key := fmt.Sprint(plane, part)
					written[key] = append(written[key], fmt.Sprintf("e%d", n))
				}
			}
			_, err = log.Append(context.Background(), tail,
				framelog.Frame{ID: fmt.Sprint(n), Body: []byte(body.String())})
			require.NoError(t, err)
		}
		some := func() {
			for range rapid.IntRange(0, 6).Draw(t, "frames") {
				write(rapid.SampledFrom(watched).Draw(t, "plane"), rapid.IntRange(0, parts-1).Draw(t, "partition"),
					rapid.IntRange(0, 5).Draw(t, "lines"))
			}
		}
		e := &events{
			admission: rpc.Unlimited{},
			heartbeat: time.Hour, life: t.Context(), behind: admission.NewHeld(maxBehind),
			sources: func(p string) ([]journal.Source, error) {
				var out []journal.Source
				for i, l := range logs[p] {
					out = append(out, journal.NewSource(p, i, l))
				}
				return out, nil
			},
		}
		ctx := rpc.WithActor(context.Background(), rpc.Actor{
			Namespace: "default", Principal: "op",
			Role: rpc.RoleOperator,
		})
		var got []*eventv1.Event
		req := &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true}
		for {
			some()
			w, err := e.open(ctx, req)
			require.NoError(t, err)
			c := &collected{most: rapid.IntRange(0, 6).Draw(t, "cut")}
			err = w.run(ctx, c)
			got = append(got, c.events...)
			if len(got) > 0 {
				req = &eventv1.WatchEventsRequest{Cursor: got[len(got)-1].GetCursor(), StopAtEnd: true}
			}
			if err == nil && rapid.Bool().Draw(t, "enough") {
				break
			}
		}
		w, err := e.open(ctx, req)
		require.NoError(t, err)
		c := &collected{most: -1}
		require.NoError(t, w.run(ctx, c))
		got = append(got, c.events...)
		seen := map[string][]string{}
		for _, ev := range got {
			for key, ids := range written {
				if slices.Contains(ids, ev.GetEventId()) {
					seen[key] = append(seen[key], ev.GetEventId())
				}
			}
		}
		for key, ids := range written {
			require.Equal(t, ids, seen[key], key)
		}
	})
}

func TestCatchingUpIsInOrderOfTime(t *testing.T) {
	logs := map[string]*journaltest.MemLog{}
	for i, p := range watched {
		logs[p] = journaltest.NewMemLog()
		for f := range 5 {
			_, tail, err := logs[p].Tail(t.Context())
			require.NoError(t, err)
			line := fmt.Sprintf(
				`{"wal_seq":%d,"event_type":"x","agent_id":"keeper","event_id":"e","namespace":"default","plane":%q,"created_at":"2026-01-01T00:00:%02d.000000Z","payload":{}}`+"\n", f+1, p, f*len(watched)+i)
			_, err = logs[p].Append(t.Context(), tail, framelog.Frame{ID: fmt.Sprint(p, f), Body: []byte(line)})
			require.NoError(t, err)
		}
	}
	e := &events{
		admission: rpc.Unlimited{},
		heartbeat: time.Hour, life: t.Context(), behind: admission.NewHeld(maxBehind),
		sources: func(p string) ([]journal.Source, error) {
			return []journal.Source{journal.NewSource(p, 0, logs[p])}, nil
		},
	}
	ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "default", Principal: "op", Role: rpc.RoleOperator})
	w, err := e.open(ctx, &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true})
	require.NoError(t, err)
	c := &collected{most: -1}
	require.NoError(t, w.run(ctx, c))
	require.Len(t, c.events, 5*len(watched))
	require.True(t, slices.IsSortedFunc(c.events, func(a, b *eventv1.Event) int {
		return a.GetCreatedAt().AsTime().Compare(b.GetCreatedAt().AsTime())
	}))
}

func TestSecretsOfRecordsAreConcealed(t *testing.T) {
	raw := &journal.RawEvent{
		Event: journal.Event{Plane: "waiting"},
		Payload: json.RawMessage(
			`{"trigger":{"trigger_id":"trg_1","token_hash":"abc","sealed_signing_secret":"c2VhbGVk"},"token_hash":"d"}`),
	}
	for _, asJSON := range []bool{false, true} {
		ev, payload, err := eventOf(raw, asJSON)
		require.NoError(t, err)
		require.Equal(t, asJSON, ev.GetPayload() == nil)
		text := ev.String() + string(payload)
		require.NotContains(t, text, "token_hash")
		require.NotContains(t, text, "sealed_signing_secret")
		require.Contains(t, text, "trg_1")
	}
}

// A stream over HTTP takes only payloads that are objects, and has one for each event.
func TestPayloadsAsJSON(t *testing.T) {
	_, _, err := eventOf(&journal.RawEvent{Payload: []byte(`[1]`)}, true)
	require.Error(t, err)
	_, payload, err := eventOf(&journal.RawEvent{}, true)
	require.NoError(t, err)
	require.Equal(t, "{}", string(payload))
}

func FuzzDecodeCursor(f *testing.F) {
	f.Add("")
	f.Add(vector{}.encode())
	f.Add(vector{
		{plane: 1, parts: []position{{seq: 3, line: 2}}},
		{plane: 2, parts: []position{{seq: 1 << 60}, {seq: 7}}},
	}.encode())
	f.Fuzz(func(t *testing.T, text string) {
		v, err := decodeCursor(text)
		if err != nil {
			require.ErrorIs(t, err, fault.CursorInvalid)
			return
		}
		require.Equal(t, text, v.encode(), "a position has one cursor")
	})
}

func TestCursorsSurviveNoDamage(t *testing.T) {
	text := vector{{plane: 1, parts: []position{{seq: 300, line: 2}}}, {plane: 4, parts: []position{{seq: 1}}}}.encode()
	_, err := decodeCursor(text)
	require.NoError(t, err)
	for i := range text {
		for _, c := range "Aa0_" {
			damaged := text[:i] + string(c) + text[i+1:]
			if damaged != text {
				_, err := decodeCursor(damaged)
				require.ErrorIs(t, err, fault.CursorInvalid)
			}
		}
		_, err := decodeCursor(text[:i])
		require.Error(t, err)
	}
}
