package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/admission"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/rpc"
)

// reader is a sink whose Send blocks, if it is stuck, until it is aborted.
type reader struct {
	stuck    bool
	received atomic.Int64
	aborted  chan error
}

func (r *reader) JSON() bool      { return false }
func (r *reader) Flush() error    { return nil }
func (r *reader) Abort(err error) { r.aborted <- err }

func (r *reader) Send(m *eventv1.WatchEventsResponse, _ []byte) error {
	if m.GetEvent() == nil {
		return nil
	}
	if r.stuck {
		return <-r.aborted
	}
	if want := r.received.Add(1); m.GetEvent().GetWalSeq() != want {
		return fmt.Errorf("event %d instead of %d", m.GetEvent().GetWalSeq(), want)
	}
	return nil
}

// TestG10_SlowReadersKeepNobodyWaiting: streams that are not read hold a bounded number of bytes, and end when others
// of their namespace wait for these. Those that are read have every event once, in order.
func TestG10_SlowReadersKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := journaltest.NewMemLog()
		life, stop := context.WithCancel(t.Context())
		e := &events{
			admission: rpc.Unlimited{},
			heartbeat: time.Hour, life: life, log: zap.NewNop(), behind: admission.NewHeld(maxBehind),
			sources: func(p string) ([]journal.Source, error) {
				if p != "work" {
					return nil, nil
				}
				return []journal.Source{journal.NewSource(p, 0, log)}, nil
			},
		}
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "default", Principal: "op", Role: rpc.RoleOperator})
		readers := []*reader{{}, {}}
		for range 40 {
			readers = append(readers, &reader{stuck: true})
		}
		ended := make(chan error, len(readers))
		for _, r := range readers {
			r.aborted = make(chan error, 100)
			w, err := e.open(ctx, &eventv1.WatchEventsRequest{})
			require.NoError(t, err)
			go func() { ended <- w.run(ctx, r) }()
		}
		synctest.Wait()
		const frames = 100
		for n := range frames {
			_, tail, err := log.Tail(t.Context())
			require.NoError(t, err)
			line := fmt.Sprintf(
				`{"wal_seq":%d,"event_type":"x","agent_id":"keeper","event_id":"e","namespace":"default","plane":"work","created_at":"2026-01-01T00:00:00.000000Z","payload":{"text":%q}}`+"\n", n+1, strings.Repeat("x", 800<<10))
			_, err = log.Append(t.Context(), tail, framelog.Frame{ID: fmt.Sprint(n), Body: []byte(line)})
			require.NoError(t, err)
			synctest.Wait()
		}
		<-time.After(5 * time.Minute)
		synctest.Wait()
		require.EqualValues(t, frames, readers[0].received.Load())
		require.EqualValues(t, frames, readers[1].received.Load())
		slow := len(ended)
		require.Greater(t, slow, 20, "those that could hold something hold it no more")
		for range slow {
			require.ErrorIs(t, <-ended, errSlow)
		}
		stop()
		for _, r := range readers[2:] {
			r.aborted <- errSlow
		}
		for range len(readers) - slow {
			<-ended
		}
	})
}
