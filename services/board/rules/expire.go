package rules

import (
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// ExpiredRun is a run whose lease expired.
type ExpiredRun struct {
	RunID string
	// TimedOut says that the run reached its time limit, whether its worker was silent
	// or not.
	TimedOut bool
}

// DecideExpire ends the runs of a board whose leases expired, in the given order, and makes
// their steps available again (SPEC B9). A run that exceeded its time limit fails its step
// instead, as a cancelled one does. Runs that have ended are skipped.
func DecideExpire(st *model.State, env journal.Env, k model.Key, boardID string,
	expired []ExpiredRun,
) []*journal.Event {
	b := st.ActiveBoard(k, boardID)
	if b == nil || b.IsDamaged() {
		return nil
	}
	t := NewTransition(b, env)
	for _, e := range expired {
		switch r := b.Runs[e.RunID]; {
		case r == nil:
		case e.TimedOut:
			t.FinishRun(r, boardv1.RunStatus_RUN_STATUS_TIMED_OUT, WhyTimeout, &boardv1.WorkerRunEnded{})
		default:
			t.ExpireLease(r)
		}
	}
	t.FollowUps()
	return t.Events
}
