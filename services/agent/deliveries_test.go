package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/runners"
	"quartet/services/agent/turns"
)

// A5, A6: a turn that lands after its caller was told that it had not was
// delivered to nobody: it is given back soon, and counts no attempt. The same
// request sent again has it instead, and then it counts.
func TestA6_ATurnThatLandedLateCountsNoAttempt(t *testing.T) {
	for name, again := range map[string]bool{"nobody asks": false, "the request is sent again": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			log := r.injectFaults()
			r.spawn("keeper")
			messageID := r.send("keeper", "x", normal)
			r.service.commitTimeout = time.Second // also of the turns that do not fail, on a busy machine
			r.service.assemble()
			log.Inject(journaltest.Late)
			req := &agentv1.AcquireTurnRequest{AgentIds: []string{"keeper"}, RequestId: "a1", Wait: durationpb.New(0)}
			failed := make(chan error, 1)
			go func() {
				_, err := r.service.AcquireTurn(r.runner(), req)
				failed <- err
			}()
			r.eventually(func() bool { return r.service.deliveries.UndeliveredLen() > 0 })
			log.Release()
			err := <-failed
			require.ErrorIs(t, err, fault.Storage)
			if again {
				var got *agentv1.AcquireTurnResponse
				r.eventually(func() bool {
					got, err = r.service.AcquireTurn(r.runner(), req)
					return err == nil && got.GetTurn() != nil
				})
				require.Equal(t, messageID, got.GetMessage().GetMessageId())
				r.finish(got, retryable)
				require.EqualValues(t, 1, r.message("keeper", messageID).GetAttempts())
				return
			}
			r.eventually(func() bool {
				return r.message("keeper", messageID).GetState() == agentv1.MessageState_MESSAGE_STATE_DEQUEUED
			})
			// Its lease is armed after the frame is visible.
			turn := r.message("keeper", messageID).GetTurnId()
			soon := r.clk.Now().Add(turns.RetryTerm)
			r.eventually(func() bool {
				until, armed := r.service.leases.Expiry(plane.Key{Namespace: "acme", ID: "keeper"}, id.RunOf(turn))
				return armed && until.Equal(soon)
			})
			r.clk.Advance(turns.RetryTerm)
			r.eventually(func() bool {
				return r.message("keeper", messageID).GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED
			})
			require.Zero(t, r.message("keeper", messageID).GetAttempts())
			// What was delivered and lost counts.
			r.take("keeper")
			r.clk.Advance(runners.Term)
			r.eventually(func() bool {
				return r.message("keeper", messageID).GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED
			})
			require.EqualValues(t, 1, r.message("keeper", messageID).GetAttempts())
		})
	}
}

// A6, X1: a runner prepares the turn while its message is still being written,
// and holds it only if that lands.
func TestA6_ATurnIsPreparedWhileItsMessageIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		fault journaltest.Fault
		lands bool
	}{"it lands": {journaltest.Late, true}, "it is refused": {journaltest.HeldRefused, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			log := r.injectFaults()
			r.spawn("keeper")
			got := make(chan *agentv1.AcquireTurnResponse, 1)
			go func() {
				for {
					resp, err := r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
						AgentIds: []string{"keeper"}, Wait: durationpb.New(20 * time.Second),
					})
					if errors.Is(err, fault.Storage) && fault.From(err).Metadata()["outcome"] == "none" {
						continue // the turn was to be written with the message, and is refused with it
					}
					got <- resp
					return
				}
			}()
			r.eventually(func() bool { return r.facts("keeper").GetRunnersWaiting() == 1 })
			read := make(chan struct{}, 8)
			r.others.set(func() {
				r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
					read <- struct{}{}
					return &workv1.GetWorkQueueResponse{AgentId: "keeper"}, nil
				}
			})
			log.Inject(c.fault)
			sent := make(chan error, 1)
			go func() {
				_, err := r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{
					AgentId: "keeper", Text: "first",
				})
				sent <- err
			}()
			<-log.Held()
			r.eventually(func() bool { return len(read) > 0 })
			require.Empty(t, got)
			log.Release()
			want := "first"
			if err := <-sent; c.lands {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, fault.Storage)
				want = "second"
				r.send("keeper", want, normal)
			}
			require.Equal(t, want, (<-got).GetMessage().GetText())
		})
	}
}
