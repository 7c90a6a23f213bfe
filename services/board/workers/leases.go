package workers

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/leasetable"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// expiryTimeout bounds one attempt to end runs whose leases expired.
const expiryTimeout = 10 * time.Second

// Leases holds the leases of the runs of the partitions that this process has.
type Leases struct {
	table  *leasetable.Table[model.Key, lease]
	engine *plane.Engine[*model.State] // set by Start
	logger *zap.Logger
	ctx    context.Context //nolint:containedctx // of expiry in the background; ends with Stop
	cancel context.CancelFunc
}

// lease is the value of a run's lease.
type lease struct {
	board board
	// standing says that a standing dispatch created the run, so that the run ends
	// with its step.
	standing bool
}

// board names the board of a run.
type board struct {
	session model.Key
	id      string
}

// NewLeases returns an empty set of leases. Nothing expires before Start.
func NewLeases(clk clock.Clock, term time.Duration, logger *zap.Logger) *Leases {
	l := &Leases{logger: logger}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.table = leasetable.New(leasetable.Config[model.Key, lease]{Clock: clk, Term: term, Expired: l.expired})
	return l
}

// Start begins to expire leases.
func (l *Leases) Start(engine *plane.Engine[*model.State]) {
	l.engine = engine
	l.table.Start(func(v lease) (time.Duration, bool) {
		return engine.Stall(v.board.session.Namespace, v.board.session.ID)
	})
}

// Stop ends expiry and waits for what is being written. Leases are not renewed or expired
// after it.
func (l *Leases) Stop() {
	l.cancel()
	l.table.Stop()
}

// Settle waits until the runs of every lease that is due were ended. It is for tests.
func (l *Leases) Settle() { l.table.Settle() }

// key returns the key of a run's lease.
func key(namespace, runID string) model.Key { return model.Key{Namespace: namespace, ID: runID} }

// Load gives every running run of a state a lease with a full term.
func (l *Leases) Load(st *model.State) {
	for b := range st.WithRuns {
		for id, r := range b.Runs {
			l.arm(boardOf(b.Key.Namespace, b.Key.Session, b.ID), id, r.Dispatch != nil, r.Record.GetDeadlineAt())
		}
	}
}

// boardOf returns the name of a board of a session.
func boardOf(namespace, session, id string) board {
	return board{model.Key{Namespace: namespace, ID: session}, id}
}

// arm gives a run a lease with a full term, at most until the run's deadline, which is nil for
// a run without one.
func (l *Leases) arm(b board, runID string, standing bool, deadline *timestamppb.Timestamp) {
	var limit time.Time
	if deadline != nil {
		limit = deadline.AsTime()
	}
	l.table.ArmUntil(key(b.session.Namespace, runID), lease{b, standing}, limit)
}

// Committed updates the leases after an event was committed: it gives a lease to a run that was
// dispatched or that claimed a step through a standing dispatch, renews it when the run claims, starts
// or updates a step, and removes it when the run or its board has ended. It never blocks. It returns the
// runs that ended with their board, without an event of their own, sorted.
func (l *Leases) Committed(ev *journal.Event) (endedWithBoard []string) {
	switch p := ev.Payload.(type) {
	case *boardv1.WorkerDispatched:
		l.arm(boardOf(ev.Namespace, ev.SessionID, ev.TaskID), p.GetRun().GetRunId(), false, p.GetRun().GetDeadlineAt())
	case *boardv1.TaskStepClaimed:
		if p.GetDispatchId() != "" {
			l.arm(boardOf(ev.Namespace, ev.SessionID, ev.TaskID), p.GetClaimedByRunId(), true, p.GetDeadlineAt())
		} else {
			l.table.Renew(key(ev.Namespace, p.GetClaimedByRunId()))
		}
	case *boardv1.TaskStepStarted, *boardv1.TaskStepUpdated:
		l.table.Renew(key(ev.Namespace, ev.ActorRunID))
	case *boardv1.TaskStepCompleted, *boardv1.TaskStepFailed, *boardv1.TaskStepBlocked, *boardv1.TaskStepCancelled:
		l.table.DropIf(key(ev.Namespace, ev.ActorRunID), func(v lease) bool { return v.standing })
	case *boardv1.TaskStepLeaseExpired:
		l.table.Drop(key(ev.Namespace, p.GetClaimedByRunId()))
	case *boardv1.WorkerRunEnded:
		l.table.Drop(key(ev.Namespace, p.GetRunId()))
	case *boardv1.TaskCompleted, *boardv1.TaskFailed, *boardv1.TaskCancelled:
		return l.dropBoard(boardOf(ev.Namespace, ev.SessionID, ev.TaskID))
	}
	return nil
}

// dropBoard removes the leases of the runs of a board and returns the runs, sorted.
func (l *Leases) dropBoard(b board) []string {
	var runs []string
	for _, k := range l.table.DropAll(func(v lease) bool { return v.board == b }) {
		runs = append(runs, k.ID)
	}
	slices.Sort(runs)
	return runs
}

// Renew extends the lease of a run to a full term, at most until the run's deadline, and returns when
// it expires. ok is false for a run without a lease.
func (l *Leases) Renew(namespace, runID string) (expires time.Time, ok bool) {
	return l.table.Renew(key(namespace, runID))
}

// Expiry returns the LeaseExpiry of a namespace, by which readers see when the lease of a run expires.
func (l *Leases) Expiry(namespace string) model.LeaseExpiry {
	return func(runID string) (time.Time, bool) { return l.table.Expires(key(namespace, runID)) }
}

// ExpireBoard ends the runs of a board whose leases expired. While no lease of the
// process is due, it costs a comparison.
func (l *Leases) ExpireBoard(ctx context.Context, session model.Key, boardID string) error {
	return l.expireMatching(ctx, func(v lease) bool { return v.board == board{session, boardID} })
}

// ExpireSession is ExpireBoard for all boards of a session.
func (l *Leases) ExpireSession(ctx context.Context, session model.Key) error {
	return l.expireMatching(ctx, func(v lease) bool { return v.board.session == session })
}

// ExpireNamespace is ExpireBoard for all boards of a namespace.
func (l *Leases) ExpireNamespace(ctx context.Context, namespace string) error {
	return l.expireMatching(ctx, func(v lease) bool { return v.board.session.Namespace == namespace })
}

// expireMatching ends the runs of the leases that are due and match.
func (l *Leases) expireMatching(ctx context.Context, matches func(lease) bool) error {
	if !l.table.AnyDue() {
		return nil
	}
	return l.expire(ctx, l.table.ListExpired(matches))
}

// expired is what the table calls with leases that are due.
func (l *Leases) expired(leases []leasetable.Lease[model.Key, lease]) {
	ctx, cancel := context.WithTimeout(l.ctx, expiryTimeout)
	defer cancel()
	if err := l.expire(ctx, leases); err != nil && l.ctx.Err() == nil {
		l.logger.Warn("board: runs whose leases expired could not be ended; trying again", zap.Error(err))
	}
}

// expire ends the runs of expired leases, board by board.
func (l *Leases) expire(ctx context.Context, leases []leasetable.Lease[model.Key, lease]) error {
	byBoard := make(map[board][]rules.ExpiredRun)
	for _, one := range leases {
		b := one.Value.board
		byBoard[b] = append(byBoard[b], rules.ExpiredRun{RunID: one.Key.ID, TimedOut: one.Limit})
	}
	for b, runs := range byBoard {
		slices.SortFunc(runs, func(x, y rules.ExpiredRun) int { return cmp.Compare(x.RunID, y.RunID) })
		if err := l.expireRuns(ctx, b, runs); err != nil {
			return err
		}
	}
	return nil
}

// expireRuns ends runs of one board whose leases expired. Leases of runs that have ended
// already are only dropped.
func (l *Leases) expireRuns(ctx context.Context, b board, runs []rules.ExpiredRun) error {
	running, _, err := journal.View(ctx, l.engine.For(b.session.Namespace, b.session.ID),
		func(st *model.State) ([]rules.ExpiredRun, error) {
			active := st.ActiveBoard(b.session, b.id)
			return slices.DeleteFunc(slices.Clone(runs), func(r rules.ExpiredRun) bool {
				return active == nil || active.IsDamaged() || active.Runs[r.RunID] == nil
			}), nil
		})
	if err != nil {
		return err
	}
	for _, r := range runs {
		if !slices.Contains(running, r) {
			l.table.Drop(key(b.session.Namespace, r.RunID))
		}
	}
	if len(running) == 0 {
		return nil
	}
	_, err = plane.Do(ctx, l.engine, plane.Command[*model.State, struct{}]{
		Frees: true, Method: "Reconcile", AgentID: b.session.ID, Actor: plane.System(b.session.Namespace),
		Decide: func(st *model.State, env journal.Env) (d journal.Decision[struct{}], _ error) {
			d.Events = rules.DecideExpire(st, env, b.session, b.id, running)
			return d, nil
		},
	})
	return err
}
