package board

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// Leases are looked at in two ways: before every operation that looks at a
// board (SPEC B9), which costs a comparison as long as nothing can be over,
// and once a second for all boards that have runs.

// lookEvery is how often: a dead worker's step is free within its term + 1 s.
const lookEvery = time.Second

// errOverdue: a lease of the board is over; it is to be taken back first.
var errOverdue = errors.New("board: a lease is over")

// slack is what is added to terms that were running while the journal could
// not be written, and whether it cannot now: no lease expires then (SPEC X12).
func (s *Service) slack() (time.Duration, bool) {
	return s.engine.StallTotal() - time.Duration(s.stallSeen.Load()), s.engine.Stalled() > 0
}

// late says whether a board must be reconciled before it is looked at.
func (s *Service) late(b *model.Board, now time.Time) bool {
	if now.UnixMicro() < b.Earliest.Load() || len(b.Runs) == 0 {
		return false
	}
	slack, stalled := s.slack()
	return !stalled && len(b.Overdue(now, slack)) > 0
}

// reconcile takes back what is overdue on one board.
func (s *Service) reconcile(ctx context.Context, k model.Key, boardID string) error {
	slack, stalled := s.slack()
	if stalled {
		return nil
	}
	_, err := plane.Do(ctx, s.engine, plane.Command[*model.State, struct{}]{
		Method: "Reconcile", AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *model.State, env journal.Env) (d journal.Decision[struct{}], _ error) {
			b := st.ActiveBoard(k, boardID)
			if b == nil {
				return d, nil
			}
			f := rules.NewTransition(b, env)
			for _, r := range b.Overdue(env.Now, slack) {
				if r.Limit() <= env.Now.UnixMicro() {
					f.FinishRun(r, boardv1.RunStatus_RUN_STATUS_TIMED_OUT, rules.WhyTimeout, &boardv1.WorkerRunEnded{})
				} else {
					f.ExpireLease(r)
				}
			}
			f.FollowUps()
			d.Events = f.Events
			return d, nil
		},
	})
	return err
}

// look is the timer: it reconciles all boards that have runs.
func (s *Service) look([]string) {
	defer func() { s.due.Set(dueLook, s.deps.Clock.Now().Add(lookEvery)) }()
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	total, stalled := s.engine.StallTotal(), s.engine.Stalled() > 0
	if stalled {
		return
	}
	grown := total - time.Duration(s.stallSeen.Load())
	type at struct {
		k  model.Key
		id string
	}
	for _, p := range s.engine.All() {
		late, _, err := journal.View(ctx, p, func(st *model.State) ([]at, error) {
			var out []at
			now := s.deps.Clock.Now()
			for b := range st.WithRuns {
				if grown > 0 {
					for _, r := range b.Runs {
						r.Deadline.Add(grown.Microseconds())
					}
				}
				if len(b.Overdue(now, 0)) > 0 {
					out = append(out, at{model.Key{Namespace: b.Key.Namespace, ID: b.Key.Session}, b.ID})
				}
			}
			return out, nil
		})
		if err != nil {
			s.deps.Logger.Warn("board: could not look for overdue leases; trying again", zap.Error(err))
			return
		}
		for _, one := range late {
			if err := s.reconcile(ctx, one.k, one.id); err != nil {
				s.deps.Logger.Warn("board: could not take overdue steps back; trying again", zap.String("board_id", one.id), zap.Error(err))
			}
		}
	}
	s.stallSeen.Store(int64(total))
}

// regrant gives every live run a full term after a load (SPEC X12).
func (s *Service) regrant(st *model.State) {
	until := s.deps.Clock.Now().Add(s.cfg.LeaseTerm)
	for b := range st.WithRuns {
		b.Earliest.Store(0)
		for _, r := range b.Runs {
			r.Deadline.Store(until.UnixMicro())
		}
	}
}
