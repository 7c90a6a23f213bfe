package turns

import (
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// Keepalive is the longest silence of a watch, within which both sides notice a dead
// connection.
const Keepalive = 15 * time.Second

// WatchTurn tells a turn's runner which messages of operators wait to be interjected, each once, and that the turn
// has ended, after which it returns nil (SPEC A7, A9). It only announces messages; the response of SubmitRound
// delivers them. The first response is empty, and so is one that is sent after Keepalive without another.
func (s *Service) WatchTurn(req *agentv1.WatchTurnRequest,
	stream grpc.ServerStreamingServer[agentv1.WatchTurnResponse],
) error {
	ctx := stream.Context()
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return err
	}
	k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
	changes := s.deps.Changes.Subscribe(k)
	defer changes.Close()
	announced := map[string]bool{}
	for first := true; ; first = false {
		// Read what is new.
		update, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (*agentv1.WatchTurnResponse, error) {
			return st.WatchUpdate(plane.Recorded(actor), req, announced)
		})
		if err != nil {
			return err
		}

		// The empty first response says that the watch has begun: nothing that happens from now on is missed.
		if first {
			if err := stream.Send(&agentv1.WatchTurnResponse{}); err != nil {
				return err
			}
		}
		for _, m := range update.GetInterjections() {
			announced[m.GetMessageId()] = true
		}
		if len(update.GetInterjections()) > 0 || update.GetEnded() != nil {
			if err := stream.Send(update); err != nil || update.GetEnded() != nil {
				return err
			}
		}

		if err := s.awaitChange(stream, changes.C()); err != nil {
			return err
		}
	}
}

// ChangesTurn reports whether an event matters to those who watch the agent's turn: an
// interjection was queued, or the turn has ended.
func ChangesTurn(ev *journal.Event) bool {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		return p.GetMessage().GetPriority() == agentv1.Priority_PRIORITY_INTERJECT
	case *agentv1.TurnCompleted, *agentv1.TurnFailed, *agentv1.TurnInterrupted, *agentv1.TurnAborted:
		return true
	}
	return false
}

// awaitChange returns nil when the turn may have changed. While it waits it sends an empty response
// after each Keepalive. It returns an error when the stream or the service ends.
func (s *Service) awaitChange(stream grpc.ServerStreamingServer[agentv1.WatchTurnResponse],
	changed <-chan struct{},
) error {
	for {
		silent := s.deps.Clock.TimerAt(s.deps.Clock.Now().Add(Keepalive))
		select {
		case <-changed:
			silent.Stop()
			return nil
		case <-silent.C():
			if err := stream.Send(&agentv1.WatchTurnResponse{}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			silent.Stop()
			return fault.From(stream.Context().Err())
		case <-s.deps.Stopping:
			silent.Stop()
			return fault.NotReady.New("the service is stopping; watch the turn again")
		}
	}
}
