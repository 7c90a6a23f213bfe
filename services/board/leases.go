package board

import (
	"context"
	"errors"
	"math"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// Leases are looked at in two ways: before every operation that looks at a
// board (SPEC B9), which costs a comparison as long as nothing can be over,
// and once a second for all boards that have runs.

// lookEvery is how often: a dead worker's step is free within its term + 1 s.
const lookEvery = time.Second

// errOverdue: a lease of the board is over; it is to be taken back first.
var errOverdue = errors.New("board: a lease is over")

// lease begins a run's term.
func (r *run) lease(until time.Time) {
	r.deadline.Store(until.UnixMicro())
	r.board.soonest(until.UnixMicro())
}

// soonest lowers the moment before which nothing of the board is over.
func (b *board) soonest(at int64) {
	for {
		old := b.earliest.Load()
		if old <= at || b.earliest.CompareAndSwap(old, at) {
			return
		}
	}
}

// overdue are the runs of a board whose lease or time is over.
func (b *board) overdue(now time.Time, slack time.Duration) []*run {
	at := now.UnixMicro()
	if at < b.earliest.Load() || len(b.runs) == 0 {
		return nil
	}
	var out []*run
	first := int64(math.MaxInt64)
	for _, r := range b.runs {
		lease, limit := r.deadline.Load()+slack.Microseconds(), r.limit()
		if min(lease, limit) <= at {
			out = append(out, r)
		}
		first = min(first, lease, limit)
	}
	if len(out) == 0 {
		b.earliest.Store(first)
	}
	return out
}

// limit is when a run's time is over, whatever its worker says.
func (r *run) limit() int64 {
	if r.rec.GetDeadlineAt() == nil {
		return math.MaxInt64
	}
	return r.rec.GetDeadlineAt().AsTime().UnixMicro()
}

// slack is what is added to terms that were running while the journal could
// not be written, and whether it cannot now: no lease expires then (SPEC X12).
func (s *Service) slack() (time.Duration, bool) {
	return s.engine.StallTotal() - time.Duration(s.stallSeen.Load()), s.engine.Stalled() > 0
}

// late says whether a board must be reconciled before it is looked at.
func (s *Service) late(b *board, now time.Time) bool {
	if now.UnixMicro() < b.earliest.Load() || len(b.runs) == 0 {
		return false
	}
	slack, stalled := s.slack()
	return !stalled && len(b.overdue(now, slack)) > 0
}

// reconcile takes back what is overdue on one board.
func (s *Service) reconcile(ctx context.Context, k key, boardID string) error {
	slack, stalled := s.slack()
	if stalled {
		return nil
	}
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Method: "Reconcile", AgentID: k.id, Actor: plane.System(k.namespace),
		Decide: func(st *State, env journal.Env) (d journal.Decision[struct{}], _ error) {
			b := st.active(k, boardID)
			if b == nil {
				return d, nil
			}
			f := newFlow(b, env)
			for _, r := range b.overdue(env.Now, slack) {
				if r.limit() <= env.Now.UnixMicro() {
					f.finish(r, boardv1.RunStatus_RUN_STATUS_TIMED_OUT, whyTimeout, &boardv1.WorkerRunEnded{})
				} else {
					f.lapse(r)
				}
			}
			f.settle()
			d.Events = f.events
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
		k  key
		id string
	}
	for _, p := range s.engine.All() {
		late, _, err := journal.View(ctx, p, func(st *State) ([]at, error) {
			var out []at
			now := s.deps.Clock.Now()
			for b := range st.busy {
				if grown > 0 {
					for _, r := range b.runs {
						r.deadline.Add(grown.Microseconds())
					}
				}
				if len(b.overdue(now, 0)) > 0 {
					out = append(out, at{key{b.key.namespace, b.key.session}, b.id})
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
func (s *Service) regrant(st *State) {
	until := s.deps.Clock.Now().Add(s.cfg.LeaseTerm)
	for b := range st.busy {
		b.earliest.Store(0)
		for _, r := range b.runs {
			r.deadline.Store(until.UnixMicro())
		}
	}
}
