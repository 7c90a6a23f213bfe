package journal_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

// mirror puts what the source put, with the same key and value. "quiet" leads to nothing, and "answer" puts
// "answered" only while "question" was put more often. It sends the result of Consume.
func mirror(ctx context.Context, p *partition, src journal.Source) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- journal.Consume(ctx, p, journal.Reaction[*journaltest.State]{
			Source: src, Registry: journaltest.Registry(), Interest: []string{"error_info"},
			React: func(s *journaltest.State, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
				m := ev.Payload.(*errdetails.ErrorInfo)
				switch m.GetReason() {
				case "quiet":
					return nil, nil
				case "answer":
					if s.Puts["question"] <= s.Puts["answered"] {
						return nil, nil
					}
					return []*journal.Event{journaltest.Event("answered", m.GetDomain())}, nil
				}
				return []*journal.Event{journaltest.Event(m.GetReason(), m.GetDomain())}, nil
			},
		})
	}()
	return done
}

// write makes p put all keys in one frame.
func write(t *testing.T, p *partition, value string, keys ...string) {
	t.Helper()
	op := journaltest.Put("", "", "")
	op.Decide = func(*journaltest.State, journal.Env) (d journal.Decision[int], _ error) {
		for _, key := range keys {
			d.Events = append(d.Events, journaltest.Event(key, value))
		}
		return d, nil
	}
	op.Answer = nil
	_, _, err := journal.Do(t.Context(), p, op)
	require.NoError(t, err)
}

func requireOrder(t *testing.T, p *partition, keys ...string) {
	t.Helper()
	want := make([]string, len(keys))
	for i, key := range keys {
		want[i] = key + "=v"
	}
	heardEventually(t, p, want...)
}

// A refused append ends Consume at once, although the source writes no more, and nothing behind it is applied
// without it.
func TestConsumeNothingPassesARefusedAppend(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewFaultLog(journaltest.NewMemLog())
	to := open(t, log, "to")
	ctx, cancel := context.WithCancel(context.Background())
	log.Inject(journaltest.HeldRefused)
	done := mirror(ctx, to, from.Source())
	write(t, from, "v", "a")
	<-log.Held()
	write(t, from, "v", "b")
	write(t, from, "v", "quiet")
	write(t, from, "v", "c")
	log.Release()
	require.ErrorIs(t, <-done, framelog.ErrRefused)
	s, _, err := journal.View(t.Context(), to, journaltest.Snapshot)
	require.NoError(t, err)
	require.Empty(t, s.Log)

	// A call that is refused again, and one that succeeds.
	log.Inject(journaltest.Refused)
	require.ErrorIs(t, <-mirror(ctx, to, from.Source()), framelog.ErrRefused)
	done = mirror(ctx, to, from.Source())
	requireOrder(t, to, "a", "b", "c")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, to.Close(t.Context()))
	to = open(t, log, "to")
	requireOrder(t, to, "a", "b", "c")
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

// Each part of a frame that is split is either stored, or Consume ends and repeats it.
func TestConsumeNoPartOfASplitFrameIsLost(t *testing.T) {
	keys := strings.Split("abcdefghijklmnopqrst", "")
	for refused := range 4 {
		from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewFaultLog(journaltest.NewMemLog())
		cfg := journaltest.Config(log)
		cfg.MaxFrame = 3000
		to, err := journal.Open(t.Context(), cfg)
		require.NoError(t, err)
		value := strings.Repeat("x", 1000)
		write(t, from, value, keys...)
		log.Inject(make([]journaltest.Fault, refused)...) // journaltest.None
		log.Inject(journaltest.Refused)
		ctx, cancel := context.WithCancel(context.Background())
		require.Error(t, <-mirror(ctx, to, from.Source()), "part %d", refused)
		done := mirror(ctx, to, from.Source())
		var want []string
		for _, key := range keys {
			want = append(want, key+"="+value)
		}
		heardEventually(t, to, want...)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, to.Close(t.Context()))
		require.NoError(t, from.Close(t.Context()))
	}
}

// An effect that the state refuses is skipped alone, not with the events behind it in the same frame.
func TestConsumeSkipsOneEventThatBreaksTheState(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewMemLog()
	to := open(t, log, "to")
	op := journaltest.Put("", "", "")
	op.Decide = func(*journaltest.State, journal.Env) (d journal.Decision[int], _ error) {
		return journal.Decision[int]{Events: []*journal.Event{
			journaltest.Event("a", "v"), journaltest.Event("bad", "v"), journaltest.Event("b", "v"),
			journaltest.Event("bad", "v"),
		}}, nil
	}
	op.Answer = nil
	_, _, err := journal.Do(t.Context(), from, op)
	require.NoError(t, err)
	write(t, from, "v", "c")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- journal.Consume(ctx, to, journal.Reaction[*journaltest.State]{
			Source: from.Source(), Registry: journaltest.Registry(),
			React: func(_ *journaltest.State, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
				if m := ev.Payload.(*errdetails.ErrorInfo); m.GetReason() != "bad" {
					return []*journal.Event{journaltest.Event(m.GetReason(), m.GetDomain())}, nil
				}
				return []*journal.Event{journaltest.Event("half", ""), journaltest.Event("poison", "")}, nil
			},
		})
	}()
	requireOrder(t, to, "a", "b", "c")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

// An event that led to nothing is not processed again with a later state, also when the partition was loaded
// again before its position was written.
func TestConsumeKeepsItsPositionAcrossAReload(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewFaultLog(journaltest.NewMemLog())
	to := open(t, log, "to")
	ctx, cancel := context.WithCancel(context.Background())
	done := mirror(ctx, to, from.Source())
	write(t, from, "v", "answer")
	_, _, err := journal.Do(t.Context(), from, journaltest.Put("quiet", "v", ""))
	require.NoError(t, err)
	require.True(t, to.AwaitConsumed(t.Context(), "from", 0, 3, nil))
	log.Inject(journaltest.Refused)
	_, _, err = journal.Do(t.Context(), to, journaltest.Put("lost", "v", ""))
	require.ErrorIs(t, err, framelog.ErrRefused)
	put(t, to, "question", "v")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, to.Close(t.Context()))

	to = open(t, log, "to")
	ctx, cancel = context.WithCancel(context.Background())
	done = mirror(ctx, to, from.Source())
	write(t, from, "v", "b")
	requireOrder(t, to, "question", "b")
	write(t, from, "v", "answer")
	requireOrder(t, to, "question", "b", "answered")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

// Random faults of the log, with a consumer that is called again whenever it ends: every effect occurs once and
// in order.
func TestConsumeOnceOverRandomFaults(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewFaultLog(journaltest.NewMemLog())
	to := open(t, log, "to")
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			err := <-mirror(ctx, to, from.Source())
			if !errors.Is(err, framelog.ErrRefused) && ctx.Err() == nil {
				t.Logf("consume: %v", err)
			}
		}
	}()
	faults := []journaltest.Fault{
		journaltest.None, journaltest.Refused, journaltest.None, journaltest.AnswerLost, journaltest.NotSent,
		journaltest.LandsBefore, journaltest.LandsAfter, journaltest.Doubted,
	}
	var keys []string
	for i := range 300 {
		key := string(rune('a' + i%26))
		log.Inject(faults[i*i%7%len(faults)], faults[i%len(faults)])
		write(t, from, "v", key, "quiet")
		keys = append(keys, key)
		if i%5 == 0 {
			write(t, from, "v", "quiet")
			requireOrder(t, to, keys...)
		}
	}
	log.Heal()
	requireOrder(t, to, keys...)
	cancel()
	<-stopped
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}
