package bus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	srv *natsd.Server
	nc  *nats.Conn
	js  jetstream.JetStream
	p   *journal.Partition[*journaltest.State]
}

func setup(t testing.TB) *rig {
	t.Helper()
	ctx := context.Background()
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: natsd.InProcess}))(t)
	t.Cleanup(srv.Stop)
	nc := must.Value(srv.Connect("test"))(t)
	t.Cleanup(nc.Close)
	js := must.Value(jetstream.New(nc))(t)
	must.Value(jetlog.Ensure(ctx, nc, "test", 1, 1))(t)
	must.Value(jetlog.Ensure(ctx, nc, "test", 1, 1))(t, "what is there and right stays")
	require.NoError(t, bus.EnsureStream(ctx, nc, 1, bus.DefaultBytes, nil))
	require.NoError(t, bus.EnsureStream(ctx, nc, 1, bus.DefaultBytes, nil))
	p := must.Value(journal.Open(ctx, journaltest.Config(must.Value(jetlog.New(nc, "test", 0))(t))))(t)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	return &rig{srv, nc, js, p}
}

func (r *rig) source(t testing.TB, plane string) journal.Source {
	t.Helper()
	return journal.NewSource(plane, 0, must.Value(jetlog.New(r.nc, plane, 0))(t))
}

func (r *rig) start(t testing.TB) *bus.Publisher {
	t.Helper()
	return must.Value(bus.Start(context.Background(), bus.Config{Conn: r.nc, Source: r.source(t, "test")}))(t)
}

func (r *rig) put(t testing.TB, key, value string) {
	t.Helper()
	_, _, err := journal.Do(context.Background(), r.p, journaltest.Put(key, value, ""))
	require.NoError(t, err)
}

// events waits for n events and returns their CloudEvents by stream order.
func (r *rig) events(t testing.TB, n uint64) (subjects []string, events []map[string]any) {
	t.Helper()
	s, err := r.js.Stream(context.Background(), bus.Stream)
	require.NoError(t, err)
	for seq := uint64(1); uint64(len(events)) < n; seq++ {
		var m *jetstream.RawStreamMsg
		require.Eventually(t, func() bool {
			m, err = s.GetMsg(context.Background(), seq)
			return err == nil
		}, time.Minute, time.Millisecond)
		if !strings.HasPrefix(m.Subject, "quartet.events.") {
			continue // a position
		}
		var ev map[string]any
		require.NoError(t, json.Unmarshal(m.Data, &ev))
		subjects, events = append(subjects, m.Subject), append(events, ev)
	}
	return subjects, events
}

func TestX10_CloudEvents(t *testing.T) {
	r := setup(t)
	pub := r.start(t)
	r.put(t, "keeper", "v")
	ready := journaltest.Put("keeper", "v", "")
	ready.AgentID = ""
	ready.Decide = func(*journaltest.State, journal.Env) (journal.Decision[int], error) {
		ev := journaltest.Event("x", "")
		ev.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		ev.AgentID, ev.ReadinessFrom, ev.ReadinessTo, ev.ReadinessReason = "a.b", "blocked", "runnable", "WAIT_RESOLVED"
		return journal.Decision[int]{Events: []*journal.Event{ev}}, nil
	}
	ready.Answer = nil
	_, _, err := journal.Do(t.Context(), r.p, ready)
	require.NoError(t, err)
	subjects, events := r.events(t, 3)
	require.Equal(t, []string{
		"quartet.events.default.test.keeper.error_info",
		"quartet.events.default.test.a_b.error_info",
		"quartet.events.default.work.a_b.readiness_changed",
	}, subjects)
	ev := events[0]
	data := ev["data"].(map[string]any)
	require.Equal(t, "1.0", ev["specversion"])
	require.Equal(t, data["event_id"], ev["id"])
	require.Equal(t, "/quartet/default/test", ev["source"])
	require.Equal(t, "quartet.test.error_info", ev["type"])
	require.Equal(t, "keeper", ev["subject"])
	require.Equal(t, data["created_at"], ev["time"])
	require.Equal(t, "application/json", ev["datacontenttype"])
	require.EqualValues(t, 2, data["wal_seq"])
	require.Equal(t, events[1], events[2])
	require.NotContains(t, ev, "traceparent", "what is not traced says nothing of it")
	require.NotContains(t, data, "traceparent")
	require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", events[1]["traceparent"],
		"CloudEvents' extension for distributed tracing")
	require.Equal(t, events[1]["traceparent"], events[1]["data"].(map[string]any)["traceparent"])
	pub.Stop()
	pub.Stop()
}

// What was not acknowledged is copied again, in order and without a gap.
func TestX10_AtLeastOnceAcrossRestarts(t *testing.T) {
	r := setup(t)
	next := 0
	say := func(n int) {
		for range n {
			r.put(t, "keeper", fmt.Sprint(next))
			next++
		}
	}
	say(100)
	for range 3 {
		pub := r.start(t)
		say(50)
		pub.Stop()
		say(50)
	}
	pub := r.start(t)
	defer pub.Stop()
	require.NoError(t, r.srv.Restart())
	say(20)
	want := 0
	s, err := r.js.Stream(t.Context(), bus.Stream)
	require.NoError(t, err)
	for seq := uint64(1); want < next; seq++ {
		var m *jetstream.RawStreamMsg
		require.Eventually(t, func() bool {
			m, err = s.GetMsg(context.Background(), seq)
			return err == nil
		}, time.Minute, time.Millisecond)
		if !strings.HasPrefix(m.Subject, "quartet.events.") {
			continue
		}
		var ev struct {
			Data struct{ Payload struct{ Domain string } }
		}
		require.NoError(t, json.Unmarshal(m.Data, &ev))
		v := ev.Data.Payload.Domain
		var got int
		must.Value(fmt.Sscan(fmt.Sprint(v), &got))(t)
		require.LessOrEqual(t, got, want, "a gap")
		if got == want {
			want++
		}
	}
}

func TestSourceReadsFrames(t *testing.T) {
	r := setup(t)
	src := r.source(t, "test")
	r.put(t, "keeper", "v")
	ctx, cancel := context.WithCancel(t.Context())
	var types []string
	require.ErrorIs(t, src.Follow(ctx, framelog.End{}, func(_ framelog.End, lines []journal.Line) error {
		for _, line := range lines {
			typ, _ := line.Type()
			types = append(types, typ)
		}
		if len(types) == 2 {
			cancel()
		}
		return nil
	}), context.Canceled)
	require.Equal(t, []string{"partition_opened", "error_info"}, types)
}

func TestStartNeedsAJournal(t *testing.T) {
	r := setup(t)
	require.Error(t, must.Err(bus.Start(t.Context(), bus.Config{Conn: r.nc, Source: r.source(t, "nowhere")})))
	require.Error(t, must.Err(bus.Start(t.Context(), bus.Config{})))
}

// BenchmarkPublish is how fast a journal is copied, in events a second.
func BenchmarkPublish(b *testing.B) {
	const frames, size = 200, 100
	r := setup(b)
	op := journaltest.Put("keeper", "", "")
	op.Answer = nil
	op.Decide = func(*journaltest.State, journal.Env) (journal.Decision[int], error) {
		var d journal.Decision[int]
		for range size {
			d.Events = append(d.Events, journaltest.Event("keeper", "some text that makes the event as long as a "+
				"small one is"))
		}
		return d, nil
	}
	s := must.Value(r.js.Stream(context.Background(), bus.Stream))(b)
	copied := func(n uint64) {
		require.Eventually(b, func() bool {
			info, err := s.Info(context.Background(), jetstream.WithSubjectFilter("quartet.events.>"))
			if err != nil {
				return false
			}
			sum := uint64(0)
			for _, k := range info.State.Subjects {
				sum += k
			}
			return sum >= n
		}, time.Minute, time.Millisecond)
	}
	var took time.Duration
	for i := range b.N {
		for range frames {
			_, _, err := journal.Do(context.Background(), r.p, op)
			require.NoError(b, err)
		}
		start := time.Now()
		pub := r.start(b)
		copied(uint64((i + 1) * frames * size))
		took += time.Since(start)
		pub.Stop()
	}
	b.ReportMetric(float64(b.N*frames*size)/took.Seconds(), "events/s")
}
