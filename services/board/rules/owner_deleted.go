package rules

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// reasonOwnerDeleted is the reason of boards that were cancelled because their
// orchestrator was deleted.
const reasonOwnerDeleted = "owner_deleted"

// React is the rule for events of the agent plane: when the deletion of an orchestrator begins, it
// marks its boards as terminating. They are cancelled as by CancelBoard, since nobody else may decide about
// them (SPEC A8, S2-429). Their WALs stay.
func React(s *model.State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	if _, deleting := ev.Payload.(*agentv1.AgentDeleting); !deleting {
		return nil, nil
	}
	k := model.Key{Namespace: ev.Namespace, ID: ev.AgentID}
	if s.Deleted[k] {
		return nil, nil
	}
	events := []*journal.Event{{
		Namespace: k.Namespace, AgentID: k.ID, SessionID: k.ID, Payload: &boardv1.OwnerDeleted{AgentId: k.ID},
	}}
	se := s.Sessions[k]
	if se == nil {
		return events, nil
	}
	for _, b := range se.Order {
		if b.IsDamaged() || b.Terminating != nil {
			continue
		}
		events = append(events,
			b.NewEvent("", &boardv1.BoardTerminating{
				Status: model.BoardCancelled, Reason: reasonOwnerDeleted,
				RunIds: b.HoldingRuns(),
			}))
	}
	return events, nil
}
