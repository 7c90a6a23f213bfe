package messages

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/utf8cut"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

const (
	// namedQuestions is how many open questions a refusal names.
	namedQuestions = 16
	// namedChars is how much of each it shows, in characters.
	namedChars = 80
)

// checkAnswer returns in refused why a supervisor's message cannot answer the wait that it names:
// the wait is no open question of the child, or never was one (SPEC A14.6). refused is nil if the
// message names no wait or an open question; err reports that this could not be determined. The
// waiting plane is read after it has consumed all messages that were sent to the child before. The
// wait may still end before the message is queued; then the message ends no wait, since the waiting
// plane decides which wait a message ends.
func (s *Service) checkAnswer(ctx context.Context, m *agentv1.Message) (refused, err error) {
	waitID := m.GetAnsweredWaitId()
	if waitID == "" {
		return nil, nil
	}
	namespace := rpc.ActorFrom(ctx).Namespace
	before, _, err := plane.View(ctx, s.engine, m.GetAgentId(), func(st *state.State) (plane.Position, error) {
		a, err := st.Find(namespace, m.GetAgentId())
		if err != nil {
			return plane.Position{}, err
		}
		return s.engine.At(namespace, m.GetAgentId(), a.LastArrival()), nil
	})
	if err != nil {
		return nil, err
	}
	list := func(req *waitingv1.ListWaitsRequest) ([]*waitingv1.Wait, error) {
		req.AgentId = m.GetAgentId()
		r, err := access.AllWaits(plane.After(ctx, before), s.deps.Waiting, req)
		if err != nil && fault.From(err).Code() == codes.NotFound {
			return nil, nil // the agent has never had a wait
		}
		return state.Questions(r.GetWaits()), err
	}
	open, err := list(&waitingv1.ListWaitsRequest{WaitIds: []string{waitID}})
	if err != nil || len(open) > 0 {
		return nil, err
	}
	if open, err = list(&waitingv1.ListWaitsRequest{}); err != nil {
		return nil, err
	}
	must := "must be an open question of the child; it asks nothing now, so leave wait_id out to send it a message"
	if len(open) > 0 {
		must = "must be an open question of the child: " + named(open)
	}
	return fault.Invalid("wait_id", waitID, must), nil
}

// named lists questions by their waits, each with the beginning of its text.
func named(open []*waitingv1.Wait) string {
	var all []string
	for i, w := range open {
		if i == namedQuestions {
			all = append(all, fmt.Sprintf("and %d more", len(open)-i))
			break
		}
		all = append(all, fmt.Sprintf("%s (%s)", w.GetWaitId(), utf8cut.Line(w.GetReason(), namedChars)))
	}
	return strings.Join(all, ", ")
}
