package board

import (
	"go.uber.org/zap"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
)

// follows is what this plane hears of the agent plane. A stopped or paused
// orchestrator keeps its boards, and their workers work on (SPEC A8: tasks run on).
func follows() []plane.Followed {
	return []plane.Followed{{
		Plane: "agent", Types: []string{"agent_deleting"},
		Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto),
	}}
}

// orphaned ends a board that its owner's deletion marked: nobody waits for that.
func (s *Service) orphaned(ev *journal.Event) {
	k := model.Key{Namespace: ev.Namespace, ID: ev.SessionID}
	s.background(func() {
		bk, err := journalView(s.ctx, s, k, func(st *model.State) (model.BoardKey, error) {
			if b := st.ActiveBoard(k, ev.TaskID); b != nil && b.Terminating != nil {
				return b.Key, nil
			}
			return model.BoardKey{}, nil
		})
		if err == nil && bk.WAL != "" {
			_, err = s.awaitEnd(s.ctx, bk, ev.TaskID)
		}
		if err != nil && s.ctx.Err() == nil { // it is ended when its workers have had their time
			s.deps.Logger.Warn("board: a deleted agent's board ends later", zap.String("board_id", ev.TaskID), zap.Error(err))
		}
	})
}
