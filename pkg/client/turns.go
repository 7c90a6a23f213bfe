package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// RunnerOptions say which turns to take and how many at once. Their functions are called by
// several goroutines, also concurrently.
type RunnerOptions struct {
	// Name is the name of the runner for people. Turns show it.
	Name string
	// AgentIDs are the agents to serve. Empty: all agents of the namespace.
	AgentIDs []string
	// AllNamespaces means that the agents of all namespaces are served, each namespace by its
	// weight (SPEC D7). It requires an admin's credential and no AgentIDs.
	AllNamespaces bool
	// ToolFamilies are the families that the profile of an agent must have to be served,
	// and Preset the preset that it must have, such as that of a child for a smaller model.
	// Neither can be combined with AllNamespaces.
	ToolFamilies []agentv1.ToolFamily
	Preset       agentv1.Preset
	// Concurrency is how many turns run at once. Default 1.
	Concurrency int
	// MaxTurns ends RunTurns after that many turns. 0: no limit.
	MaxTurns int
	// Poll is how long one request waits for a turn. Default 30 s, at most 55 s.
	Poll time.Duration
	// Grace is how long running turns may continue after ctx has ended; then their contexts
	// end with ErrStopping. Default 0.
	Grace time.Duration
	// Announce is called with operators' messages that the next round of a turn will
	// return, as soon as they are queued. Optional.
	Announce func(*Turn, []*agentv1.Message)
	// Finished is called with the result of each turn. Optional.
	Finished func(*Turn, error)
	// Troubled is called with errors after which RunTurns tries again. Optional.
	Troubled func(error)
}

// Handler executes a turn. Its error decides the outcome: nil is completed; Retryable,
// Released, Fatal and OverBudget have their own; any other error is retryable. ctx ends with
// a cause when the run was aborted or lost, or when the runner stops; any error that is returned
// after ErrStopping releases the turn.
type Handler func(ctx context.Context, t *Turn) error

// RunTurns acquires turns and calls handle with each, until ctx ends or MaxTurns are done,
// which is no error, or the server refuses the runner. It returns when no turn is running.
// It continues after restarts of the server: requests whose responses were lost are repeated
// with the same id.
func (c *Client) RunTurns(ctx context.Context, opts RunnerOptions, handle Handler) error {
	if opts.Concurrency <= 0 {
		opts.Concurrency = 1
	}
	if opts.Poll <= 0 {
		opts.Poll = 30 * time.Second
	}
	if opts.Troubled == nil {
		opts.Troubled = func(error) {}
	}
	r := &turnLoop{client: c, opts: opts, handle: handle, ids: id.New()}
	r.left.Store(int64(opts.MaxTurns))
	taking, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	var lanes sync.WaitGroup
	var first atomic.Pointer[error]
	for range opts.Concurrency {
		lanes.Go(func() {
			if err := r.lane(taking); err != nil {
				first.CompareAndSwap(nil, &err)
				stop(ErrStopping)
			}
		})
	}
	lanes.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

type turnLoop struct {
	client *Client
	opts   RunnerOptions
	handle Handler
	ids    id.Source
	left   atomic.Int64 // turns that may still be taken, if MaxTurns is set
}

// lane executes one turn after the other.
func (r *turnLoop) lane(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.opts.MaxTurns > 0 && r.left.Add(-1) < 0 {
			return nil
		}
		t, err := r.acquire(ctx)
		if err != nil || t == nil {
			return err
		}
		r.run(ctx, t)
	}
	return nil
}

// acquire waits for a turn. It returns nil when ctx ends.
func (r *turnLoop) acquire(ctx context.Context) (*Turn, error) {
	req := &agentv1.AcquireTurnRequest{
		AgentIds: r.opts.AgentIDs, AllNamespaces: r.opts.AllNamespaces,
		ToolFamilies: r.opts.ToolFamilies, Preset: r.opts.Preset, RunnerId: r.opts.Name,
		Wait: durationpb.New(r.opts.Poll), RequestId: r.ids.New("acq_"),
	}
	pacer := newPacer()
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, attemptTerm)
		got, err := r.client.Agents.AcquireTurn(one, req)
		cancel()
		switch {
		case err == nil && got.GetTurn().GetState() == agentv1.TurnState_TURN_STATE_OPEN:
			return r.turn(got), nil
		case err == nil && got.GetTurn() != nil: // it was lost before the response arrived
			req.RequestId = r.ids.New("acq_")
		case err == nil:
			pacer.Reset()
		case ctx.Err() != nil:
		case !mayAcquireLater(err):
			return nil, fmt.Errorf("acquire a turn: %w", err)
		default:
			r.opts.Troubled(err)
			_ = pacer.Wait(ctx) // the loop checks ctx
		}
	}
	return nil, nil
}

// mayAcquireLater reports whether another attempt to acquire a turn may succeed: not after a
// refusal of the request or the credential, but after any error of the server.
func mayAcquireLater(err error) bool {
	switch fault.From(err).Code() {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.AlreadyExists,
		codes.NotFound:
		return false
	}
	return true
}

func (r *turnLoop) turn(got *agentv1.AcquireTurnResponse) *Turn {
	return &Turn{
		Record: got.GetTurn(), Message: got.GetMessage(), Interjections: got.GetInterjections(),
		Context: got.GetContext(),
		Tools:   got.GetTools(), Agent: got.GetAgent(), Namespace: got.GetNamespace(), Token: got.GetRunToken(),
		client: r.client, index: got.GetTurn().GetRounds(),
	}
}

// run holds the turn while its handler runs, and then finishes it.
func (r *turnLoop) run(ctx context.Context, t *Turn) {
	thinking, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	t.cancel = cancel
	unstop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(r.opts.Grace, func() { cancel(ErrStopping) })
		context.AfterFunc(thinking, func() { timer.Stop() })
	})
	defer unstop()

	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	var holders sync.WaitGroup
	holders.Go(func() { t.renew(holding, heartbeat(t.Record)) })
	holders.Go(func() {
		var announce func([]*agentv1.Message)
		if r.opts.Announce != nil {
			announce = func(ms []*agentv1.Message) { r.opts.Announce(t, ms) }
		}
		t.watch(holding, announce)
	})

	err := r.handle(thinking, t)
	if errors.Is(context.Cause(thinking), ErrStopping) && err != nil {
		err = Released(ErrStopping)
	}
	// A turn whose run was lost need not be finished. If the runner has not noticed that,
	// the server refuses the finish.
	if ferr := t.finish(thinking, err); ferr != nil {
		r.opts.Troubled(ferr)
	}
	var gone *EndedError
	if errors.As(context.Cause(thinking), &gone) && err == nil {
		err = gone
	}
	release()
	holders.Wait()
	cancel(nil)
	if r.opts.Finished != nil {
		r.opts.Finished(t, err)
	}
}
