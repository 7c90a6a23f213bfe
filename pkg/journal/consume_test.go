package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

type partition = journal.Partition[*journaltest.State]

func open(t *testing.T, log framelog.Log, plane string) *partition {
	t.Helper()
	cfg := journaltest.Config(log)
	cfg.Plane = plane
	return must.Value(journal.Open(t.Context(), cfg))(t)
}

// copies makes p put what source put, under the key heard.
func copies(t *testing.T, p *partition, src journal.Source) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- journal.Consume(ctx, p, journal.Reaction[*journaltest.State]{
			Source: src, Registry: journaltest.Registry(), Interest: []string{"error_info"},
			React: func(s *journaltest.State, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
				m := ev.Payload.(*errdetails.ErrorInfo)
				switch m.GetReason() {
				case "quiet":
					return nil, nil
				case "refuse":
					return nil, errors.New("no")
				case "bad":
					return []*journal.Event{journaltest.Event("half", m.GetDomain()), journaltest.Event("poison", "")},
						nil
				}
				return []*journal.Event{
					journaltest.Event("heard", fmt.Sprintf("%s@%d", m.GetDomain(), s.Puts["heard"])),
				}, nil
			},
		})
	}()
	return func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
}

func heardEventually(t *testing.T, p *partition, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, _, err := journal.View(context.Background(), p, journaltest.Snapshot)
		return err == nil && fmt.Sprint(s.Log) == fmt.Sprint(want)
	}, time.Minute, time.Millisecond)
}

func put(t *testing.T, p *partition, key, value string) {
	t.Helper()
	_, _, err := journal.Do(t.Context(), p, journaltest.Put(key, value, ""))
	require.NoError(t, err)
}

func TestConsumeOnceAcrossFaultsAndRestarts(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewFaultLog(journaltest.NewMemLog())
	to := open(t, log, "to")
	stop := copies(t, to, from.Source())
	var want []string
	say := func(key, value string) {
		put(t, from, key, value)
		if key == "k" {
			want = append(want, fmt.Sprintf("heard=%s@%d", value, len(want)))
		}
		heardEventually(t, to, want...)
	}
	say("k", "1")
	for f := journaltest.None; f < journaltest.Last; f++ {
		if f == journaltest.Late || f == journaltest.HeldRefused || f == journaltest.Frozen || f == journaltest.Refused {
			continue
		}
		log.Inject(f)
		say("k", fmt.Sprint("fault", f))
		say("quiet", "")
		say("refuse", "")
		say("bad", "")
	}
	stop()
	require.NoError(t, to.Close(t.Context()))
	to = open(t, log, "to")
	heardEventually(t, to, want...)
	stop = copies(t, to, from.Source())
	say("k", "after restart")
	stop()
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

func TestConsumeCutsAFrameThatGrows(t *testing.T) {
	from := open(t, journaltest.NewMemLog(), "from")
	op := journaltest.Put("k", "", "")
	op.Decide = func(*journaltest.State, journal.Env) (journal.Decision[int], error) {
		var events []*journal.Event
		for i := range 10 {
			events = append(events, journaltest.Event("k", strings.Repeat("x", 1000)+fmt.Sprint(i)))
		}
		return journal.Decision[int]{Events: events}, nil
	}
	op.Answer = nil
	_, _, err := journal.Do(t.Context(), from, op)
	require.NoError(t, err)
	cfg := journaltest.Config(journaltest.NewMemLog())
	cfg.MaxFrame = 3000
	to := must.Value(journal.Open(t.Context(), cfg))(t)
	stop := copies(t, to, from.Source())
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprintf("heard=%s%d@%d", strings.Repeat("x", 1000), i, i))
	}
	heardEventually(t, to, want...)
	stop()
	frames := 0
	require.NoError(t, cfg.Log.Scan(t.Context(), 1, func(_ uint64, f framelog.Frame) error {
		frames++
		require.Less(t, len(f.Body), 6000)
		return nil
	}))
	require.Greater(t, frames, 3)
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

// Two planes that hear each other must fall silent: a mark is no news.
func TestConsumeMarksDoNotAnswerMarks(t *testing.T) {
	logs := [2]*journaltest.FaultLog{journaltest.NewFaultLog(journaltest.NewMemLog()), journaltest.NewFaultLog(journaltest.NewMemLog())}
	a, b := open(t, logs[0], "a"), open(t, logs[1], "b")
	stopA, stopB := copies(t, a, b.Source()), copies(t, b, a.Source())
	for i := range 2500 {
		put(t, a, "quiet", fmt.Sprint(i))
	}
	marks := func() (n int) {
		require.NoError(t, logs[1].Scan(t.Context(), 1, func(_ uint64, f framelog.Frame) error {
			for _, line := range framelog.SplitLines(f.Body) {
				if typ, _ := framelog.TypeOfLine(line); typ == journal.TypeSourceConsumed {
					n++
				}
			}
			return nil
		}))
		return n
	}
	require.Eventually(t, func() bool { return marks() == 2 }, time.Minute, time.Millisecond)
	require.Never(t, func() bool { return logs[0].Appends() > 2501 || logs[1].Appends() > 3 }, 50*time.Millisecond,
		5*time.Millisecond)
	stopA()
	stopB()
	require.NoError(t, a.Close(t.Context()))
	require.NoError(t, b.Close(t.Context()))
}

// What a source said and led to nothing is not heard again by a state that came
// later, whether a command or another source brought that about.
func TestConsumeNothingIsHeardByALaterState(t *testing.T) {
	from, other, log := open(t, journaltest.NewMemLog(), "from"), open(t, journaltest.NewMemLog(), "other"), journaltest.NewMemLog()
	seen := make(chan int, 100)
	start := func() (*partition, func()) {
		to := open(t, log, "to")
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		for _, src := range []journal.Source{from.Source(), other.Source()} {
			done.Go(func() {
				_ = journal.Consume(ctx, to, journal.Reaction[*journaltest.State]{ // ends with ctx
					Source: src, Registry: journaltest.Registry(),
					React: func(s *journaltest.State, _ journal.Env, ev *journal.Event) ([]*journal.Event, error) {
						defer func() { seen <- s.Puts["wait"] }()
						if m := ev.Payload.(*errdetails.ErrorInfo); m.GetReason() == "wait" ||
							s.Puts["wait"] > s.Puts["resolved"] {
							return []*journal.Event{
								journaltest.Event(map[bool]string{true: "wait", false: "resolved"}[m.GetReason() ==
									"wait"], m.GetDomain()),
							}, nil
						}
						return nil, nil
					},
				})
			})
		}
		return to, func() {
			cancel()
			done.Wait()
			require.NoError(t, to.Close(t.Context()))
		}
	}
	for n, wait := range []func(to *partition){
		func(to *partition) { put(t, to, "wait", "a command's") },
		func(*partition) { put(t, other, "wait", "another source's"); <-seen },
	} {
		to, stop := start()
		put(t, from, "message", "before")
		require.Equal(t, n, <-seen)
		wait(to)
		settled := func(want ...string) {
			heardEventually(t, to, want...)
		}
		log := [][]string{{"wait=a command's"}, {"wait=a command's", "resolved=after", "wait=another source's"}}[n]
		settled(log...)
		stop()
		to, stop = start()
		put(t, from, "message", "after")
		settled(append(log, "resolved=after")...)
		require.Equal(t, n+1, <-seen, "the message before was heard once")
		stop()
	}
	require.NoError(t, from.Close(t.Context()))
	require.NoError(t, other.Close(t.Context()))
}
