package rules

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// ReasonOwnerDeleted is why the boards of a deleted orchestrator were cancelled.
const ReasonOwnerDeleted = "owner_deleted"

// React is the rule for what the agent plane says: deleting an orchestrator ends
// its boards as CancelBoard does, since nobody else may say what becomes of them
// (SPEC A8, S2-429). Its WALs stay.
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
		events = append(events, b.NewEvent("", &boardv1.BoardTerminating{Status: model.BoardCancelled, Reason: ReasonOwnerDeleted, RunIds: b.HoldingRuns()}))
	}
	return events, nil
}
