package task

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/retry"
	"quartet/services/task/model"
	"quartet/services/task/output"
)

// remover removes the output of the commands of deleted agents, once the commands have ended. The output of private
// children, which are deleted as soon as they are done, stays for those who want to see what they did. The remover
// holds nothing that is not in the journal too: after a start it removes again what may be left.
type remover struct {
	store  output.Store
	logger *zap.Logger
	// left returns the ended tasks of an agent that may have output.
	left func(ctx context.Context, o model.Owner) (taskIDs []string, err error)

	mu      sync.Mutex
	idle    *sync.Cond           // on mu; broadcast when nothing is due
	deleted map[model.Owner]bool // agents that are deleted; true: their output is to be removed
	busy    bool
	signal  chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newRemover(store output.Store, logger *zap.Logger, left func(ctx context.Context, o model.Owner) ([]string,
	error),
) *remover {
	r := &remover{
		store: store, logger: logger, left: left, deleted: map[model.Owner]bool{},
		signal: make(chan struct{}, 1),
	}
	r.idle = sync.NewCond(&r.mu)
	return r
}

// ended is called with the agent of a task that has ended. It does not block.
func (r *remover) ended(o model.Owner) { r.note(o, false) }

// ownerDeleted is called with an agent that was deleted. It does not block.
func (r *remover) ownerDeleted(o model.Owner) { r.note(o, true) }

func (r *remover) note(o model.Owner, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.deleted[o]; !known && !deleted {
		return
	}
	r.deleted[o] = true
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// start begins to remove, in the background.
func (r *remover) start() {
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(func() {
		pacer := retry.New(time.Second, time.Minute)
		for {
			select {
			case <-r.signal:
			case <-ctx.Done():
				return
			}
			for {
				err := r.pass(ctx)
				if err == nil {
					pacer.Reset()
					break
				}
				if ctx.Err() == nil {
					r.logger.Warn("task: output of a deleted agent was not removed; it is tried again", zap.Error(err))
				}
				if pacer.Wait(ctx) != nil {
					return
				}
			}
		}
	})
}

// stop ends the remover and waits for it. It may be called more than once, and without start.
func (r *remover) stop() {
	if r.cancel != nil {
		r.cancel()
	}
	r.running.Wait()
}

// settle waits until everything is removed that was due. It is for tests.
func (r *remover) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.busy || len(r.due()) > 0 {
		r.idle.Wait()
	}
}

// due returns the agents whose output is to be removed. The caller holds mu.
func (r *remover) due() (owners []model.Owner) {
	for o, due := range r.deleted {
		if due {
			owners = append(owners, o)
		}
	}
	slices.SortFunc(owners, model.Owner.Compare)
	return owners
}

// pass removes what is due.
func (r *remover) pass(ctx context.Context) error {
	r.mu.Lock()
	owners := r.due()
	for _, o := range owners {
		r.deleted[o] = false // what is noted from here on is for the next pass
	}
	r.busy = true
	r.mu.Unlock()
	var failed error
	for _, o := range owners {
		if err := r.remove(ctx, o); err != nil {
			failed = err
			r.mu.Lock()
			r.deleted[o] = true
			r.mu.Unlock()
		}
	}
	r.mu.Lock()
	r.busy = false
	r.idle.Broadcast()
	r.mu.Unlock()
	return failed
}

// remove removes the output of one agent.
func (r *remover) remove(ctx context.Context, o model.Owner) error {
	ids, err := r.left(ctx, o)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := r.store.Remove(ctx, o.Namespace, id); err != nil {
			return err
		}
	}
	return nil
}

// leftOf returns the ended commands of an agent that may have output.
func (s *Service) leftOf(ctx context.Context, o model.Owner) ([]string, error) {
	ids, _, err := plane.View(ctx, s.engine, o.ID, func(st *model.State) (ids []string, err error) {
		for r := range st.TasksOf(o) {
			if t := r.Task; model.Terminal(t.GetState()) && !model.IsChild(t) && t.GetOutputBytes() > 0 &&
				!s.removed(t) {
				ids = append(ids, t.GetTaskId())
			}
		}
		return ids, nil
	})
	return ids, err
}

// removed reports whether all output of an ended command is older than what is kept.
func (s *Service) removed(t *taskv1.Task) bool {
	return s.cfg.KeepOutput > 0 && t.GetEndedAt() != nil && s.clk.Now().Sub(t.GetEndedAt().AsTime()) > s.cfg.KeepOutput
}

// loaded tells the remover of the deleted agents of a state that was just loaded, since a process that was killed may
// not have removed their output.
func (s *Service) loaded(st *model.State) {
	for o := range st.Deleted {
		if !st.Ended[o] {
			s.remover.ownerDeleted(o)
		}
	}
}

// noteDeleted tells the remover if an event deleted an agent, other than a private child, or ended a task.
func (s *Service) noteDeleted(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *taskv1.OwnerDeleted:
		if !p.GetPrivateChild() {
			s.remover.ownerDeleted(plane.KeyOf(ev.Namespace, ev.AgentID))
		}
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted:
		s.remover.ended(plane.KeyOf(ev.Namespace, ev.AgentID))
	}
}
