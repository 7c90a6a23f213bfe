package board

import (
	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// reasonOwnerDeleted is why the boards of a deleted orchestrator were cancelled.
const reasonOwnerDeleted = "owner_deleted"

// follows is what this plane hears of the agent plane. A stopped or paused
// orchestrator keeps its boards, and their workers work on (SPEC A8: tasks run on).
func follows() []plane.Followed {
	return []plane.Followed{{
		Plane: "agent", Types: []string{"agent_deleting"},
		Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
	}}
}

// react is the rule for what the agent plane says: deleting an orchestrator ends
// its boards as CancelBoard does, since nobody else may say what becomes of them
// (SPEC A8, S2-429). Its WALs stay.
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	if _, deleting := ev.Payload.(*agentv1.AgentDeleting); !deleting {
		return nil, nil
	}
	k := key{ev.Namespace, ev.AgentID}
	if s.deleted[k] {
		return nil, nil
	}
	events := []*journal.Event{{
		Namespace: k.namespace, AgentID: k.id, SessionID: k.id, Payload: &boardv1.OwnerDeleted{AgentId: k.id},
	}}
	se := s.sessions[k]
	if se == nil {
		return events, nil
	}
	for _, b := range se.order {
		if b.broken() || b.terminating != nil {
			continue
		}
		events = append(events, b.event("", &boardv1.BoardTerminating{Status: taskCancelled, Reason: reasonOwnerDeleted, RunIds: b.holding()}))
	}
	return events, nil
}

// owned refuses boards for an orchestrator that is deleted.
func (s *State) owned(k key) error {
	if s.deleted[k] {
		return fault.AgentDeleted.Newf("agent %q is deleted; it gets no boards any more", k.id).With("agent_id", k.id)
	}
	return nil
}

// orphaned ends a board that its owner's deletion marked: nobody waits for that.
func (s *Service) orphaned(ev *journal.Event) {
	k := key{ev.Namespace, ev.SessionID}
	s.background(func() {
		bk, err := journalView(s.ctx, s, k, func(st *State) (boardKey, error) {
			if b := st.active(k, ev.TaskID); b != nil && b.terminating != nil {
				return b.key, nil
			}
			return boardKey{}, nil
		})
		if err == nil && bk.wal != "" {
			_, err = s.awaitEnd(s.ctx, bk, ev.TaskID)
		}
		if err != nil && s.ctx.Err() == nil { // it is ended when its workers have had their time
			s.deps.Logger.Warn("board: a deleted agent's board ends later", zap.String("board_id", ev.TaskID), zap.Error(err))
		}
	})
}
