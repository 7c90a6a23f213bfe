// Package plane has what all planes have in common: partitions, following other planes, and
// executing a request in the journal. It knows no plane in particular.
//
//	handler --Do--> journal partition (rule, frame, fsync) --> response
//	other plane's journal --React--> the same partition, exactly once
package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/retry"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
)

// Deps are what a plane needs of its process.
type Deps struct {
	// Log opens the log of a partition.
	Log func(plane string, partition int) (framelog.Log, error)
	// Witness returns what remembers how far the log of a partition was written; nil: nothing does.
	Witness func(plane string, partition int) framelog.Witness
	// LossPatience is that of journal.Config.
	LossPatience time.Duration
	// SegmentSize is that of journal.Config.
	SegmentSize int64
	// Snapshots returns the store of the snapshots of a partition; nil: none are written. SnapshotBytes is that of
	// journal.Config.
	Snapshots     func(plane string, partition int) (snapshot.Store, error)
	SnapshotBytes int64
	// Eviction is that of journal.Config; nil: all owners stay in memory. Every EvictEvery, the owners that were not
	// used since the last time are evicted; 0: never. Pressed reports that memory is short, so that owners are evicted
	// sooner; nil: it never is.
	Eviction   *snapshot.EvictionPolicy
	EvictEvery time.Duration
	Pressed    func() bool
	// CheckRestored is that of journal.Config.
	CheckRestored func(restored, replayed journal.State) error
	// Sources returns the journals of the partitions of another plane, to follow.
	Sources func(plane string) ([]journal.Source, error)
	// Partitions returns how many partitions a plane has; nil: each has one.
	Partitions func(plane string) int
	// Lease is the lease of the partitions that are opened with these Deps; nil if no
	// other process can hold them.
	Lease journal.Lease
	// Feeds are for followers in the same process. Optional.
	Feeds *journal.Feeds
	// Requests is the pool that the request memories of the process share. Optional.
	Requests *requests.Pool
	// Room says whether the store of the journals has room for more. Optional.
	Room *framelog.Room
	// EraseEvents removes a plane's events of an agent from the stream EVENTS; nil: that has none.
	EraseEvents func(ctx context.Context, plane, namespace, agentID string) error
	// EraseAfter is how long after the deletion of an owner everything that it had is erased; 0: never.
	EraseAfter time.Duration
	// History says how long events are kept that have no use any more; its zero value keeps all.
	History History
	// ReadThrough returns the wal_seq up to which all that follow the journal of a partition have read it, as far as
	// they have to read all of it: the other planes, and EVENTS. An error means that it is not known. Required with a
	// History.
	ReadThrough func(ctx context.Context, plane string, partition int) (uint64, error)
	// Positions records how far the partitions have consumed the journals that they follow. Optional.
	Positions *Positions
	// Removals records the partitions in which old events, or those of deleted agents, could not be removed. Optional.
	Removals *Removals
	Clock    clock.Clock
	// WaitClock bounds how long a call waits: a read for other planes (see After), a
	// runner for a turn. Default Clock. A test whose Clock moves only by hand gives
	// another one.
	WaitClock clock.Clock
	IDs       id.Source
	Logger    *zap.Logger
	// Tracer traces what requests cause. Optional.
	Tracer *tracing.Tracer
	// Metrics gets the metrics of the plane. Optional.
	Metrics prometheus.Registerer
	// Arrive is that of journal.Config. Optional.
	Arrive func(ctx context.Context, method, agentID, requestID string)
}

// Complete returns an error if something required is missing, and sets defaults.
func (d *Deps) Complete() error {
	if d.Log == nil || d.Sources == nil {
		return errors.New("plane: Deps needs Log and Sources")
	}
	if d.History.Shortest() > 0 && d.ReadThrough == nil {
		return errors.New("plane: Deps needs ReadThrough with a History")
	}
	if d.Partitions == nil {
		d.Partitions = func(string) int { return 1 }
	}
	if d.Positions == nil {
		d.Positions = &Positions{}
	}
	if d.Removals == nil {
		d.Removals = &Removals{}
	}
	if d.Clock == nil {
		d.Clock = clock.System()
	}
	if d.WaitClock == nil {
		d.WaitClock = d.Clock
	}
	if d.IDs == nil {
		d.IDs = id.New()
	}
	if d.Logger == nil {
		d.Logger = zap.NewNop()
	}
	return nil
}

// Followed is another plane whose events this one receives.
type Followed struct {
	Plane    string
	Registry *journal.Registry
	Types    []string // the event types that React handles; Open refuses those that Registry does not have
	// Matters, if set, excludes events of these types for which React returns nothing
	// in any state.
	Matters func(ev *journal.Event) bool
}

// Config describes one plane.
type Config[S journal.State] struct {
	Plane string
	// Share says which partitions of the plane this process may hold; zero: all.
	Share  journal.Share
	New    func() S
	Events protoreflect.FileDescriptor
	Follow []Followed
	// React is the rule for the events of other planes. It is pure, like Decide.
	React func(s S, env journal.Env, ev *journal.Event) ([]*journal.Event, error)
	// Dependent reports whether a read about an agent depends on what other planes
	// do now; nil: it always does. A read that does not depend on them is not delayed
	// by After.
	Dependent func(s S, namespace, agentID string) bool
	// Erasing removes what is stored of a deleted agent outside of the plane's journal, such as its files. It is called
	// before the agent is erased from the journal and again afterwards, and may be called more often, after a failure
	// or a restart. Optional.
	Erasing func(ctx context.Context, namespace, agentID string) error
	// OnCommit is called with the durable events of a partition, in order. It must not
	// block.
	OnCommit func(partition int, events []*journal.Event)
	// OnApply is called with the events of a partition before they are durable; see
	// journal.Config. It must not block.
	OnApply func(state S, events []*journal.Event) (followUps int)
	// OnLoad is called with the state of a partition whenever it was loaded: at the start, and
	// again after another writer had the partition or a write failed. It rebuilds due-time
	// indexes. It must not block, and is called before Open returns for the first time.
	OnLoad func(state S)
}

// The first and the longest pause after which a source is followed again.
const (
	followPause    = 50 * time.Millisecond
	maxFollowPause = 5 * time.Second
)

// Engine runs a plane's partitions.
type Engine[S journal.State] struct {
	cfg     Config[S]
	deps    Deps
	parts   *journal.Partitions[S]
	erased  *removal
	expired *removal
	stop    context.CancelFunc
	running sync.WaitGroup
	closed  sync.Once
	err     error
}

// Open loads the partitions and becomes their writer. It retries errors of the log until ctx
// ends, as journal.Open does. Call Follow after it, and Close when the plane stops. After an error nothing is open.
func Open[S journal.State](ctx context.Context, cfg Config[S], deps Deps) (*Engine[S], error) {
	if err := deps.Complete(); err != nil {
		return nil, err
	}
	for _, f := range cfg.Follow {
		for _, eventType := range f.Types {
			if !f.Registry.Has(eventType) {
				return nil, fmt.Errorf("%s: follows %s, which is no event type of %s", cfg.Plane, eventType, f.Plane)
			}
		}
	}
	e := &Engine[S]{cfg: cfg, deps: deps}
	e.erased, e.expired = newRemoval(deps.Metrics, deps.Removals, cfg.Plane, causeErase),
		newRemoval(deps.Metrics, deps.Removals, cfg.Plane, causeHistory)

	registry := journal.NewRegistry(cfg.Events)
	var err error
	e.parts, err = journal.OpenShare(ctx, cmp.Or(cfg.Share, journal.WholeShare(deps.Partitions(cfg.Plane))),
		func(partition int) (journal.Config[S], error) {
			log, err := deps.Log(cfg.Plane, partition)
			c := journal.Config[S]{
				Log: log, Plane: cfg.Plane, New: cfg.New, Registry: registry,
				Now: deps.Clock.Now, Elapsed: clock.Monotonic(deps.Clock), NewID: deps.IDs.New, Logger: deps.Logger,
				Tracer: deps.Tracer, Metrics: deps.Metrics, Requests: deps.Requests, Room: deps.Room,
				Arrive: deps.Arrive, SegmentSize: deps.SegmentSize,
				SnapshotBytes: deps.SnapshotBytes, Eviction: deps.Eviction, CheckRestored: deps.CheckRestored,
			}

			// What each partition has of its own.
			if err == nil && deps.Snapshots != nil {
				c.Snapshots, err = deps.Snapshots(cfg.Plane, partition)
			}
			if cfg.OnCommit != nil {
				c.OnCommit = func(events []*journal.Event) { cfg.OnCommit(partition, events) }
			}
			if deps.Witness != nil {
				c.Witness, c.LossPatience = deps.Witness(cfg.Plane, partition), deps.LossPatience
			}
			c.OnApply = cfg.OnApply
			c.OnLoad, c.Feed, c.Lease = cfg.OnLoad, deps.Feeds.Of(cfg.Plane, partition), deps.Lease
			return c, err
		})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Follow begins to receive the events of other planes, and receives them until Close, also
// after ctx has ended. After an error some planes may be followed already. It is separate
// from Open because a plane may have to rebuild indexes from its state first.
func (e *Engine[S]) Follow(ctx context.Context) error {
	follow, cancel := context.WithCancel(context.WithoutCancel(ctx)) //nolint:gosec // Close calls it
	e.stop = cancel

	// Each partition follows each partition of the other planes.
	for _, f := range e.cfg.Follow {
		sources, err := e.deps.Sources(f.Plane)
		if err != nil {
			return fmt.Errorf("%s: follow %s: %w", e.cfg.Plane, f.Plane, err)
		}
		for _, src := range sources {
			for _, p := range e.parts.All() {
				e.running.Add(1)
				go e.follow(follow, p, src, f)
			}
		}
	}

	// Background passes over the partitions.
	if e.evicts() {
		e.running.Go(func() { e.evict(follow) })
	}
	if _, erases := any(e.cfg.New()).(journal.Erasable); erases && e.deps.EraseAfter > 0 {
		e.running.Go(func() { e.erase(follow) })
	}
	if _, retains := any(e.cfg.New()).(journal.Retaining); retains && e.deps.History.Shortest() > 0 {
		e.running.Go(func() { e.expire(follow) })
	}
	return nil
}

// follow consumes a source until ctx ends or the partition is not held any more. After another error, such as a
// refused append, it continues from the partition's position.
func (e *Engine[S]) follow(ctx context.Context, p *journal.Partition[S], src journal.Source, f Followed) {
	defer e.running.Done()
	position, remove := e.deps.Positions.add(positionKey{e.cfg.Plane, p.Index(), f.Plane, src.Partition()},
		func(ctx context.Context, walSeq uint64) bool {
			return p.AwaitConsumed(ctx, f.Plane, src.Partition(), walSeq, nil)
		})
	defer remove()

	reaction := journal.Reaction[S]{
		Registry: f.Registry, Interest: f.Types, Matters: f.Matters,
		React: func(s S, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
			if e.parts.For(ev.Namespace, ev.AgentID) != p || wasErased(s, ev) {
				return nil, nil // the agent is in another partition, or nothing is kept of it any more
			}
			return e.cfg.React(s, env, ev)
		},
	}
	log := e.deps.Logger.With(zap.String("plane", e.cfg.Plane), zap.Int("partition", p.Index()),
		zap.String("source", f.Plane), zap.Int("source_partition", src.Partition()))
	pacer := retry.New(followPause, maxFollowPause)

	// Consume, and again after an error.
	for {
		began := e.deps.Clock.Now()
		reaction.Source = &consumedSource{Source: src, consumed: position}
		err := journal.Consume(ctx, p, reaction)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, journal.ErrNotHeld):
			log.Error("stopped following: the partition is not held any more", zap.Error(err))
			return
		}
		if e.deps.Clock.Now().Sub(began) > maxFollowPause {
			pacer.Reset() // it worked for a while, so this is another failure
		}
		log.Warn("following is interrupted and continues", zap.Error(err))
		if pacer.Wait(ctx) != nil {
			return
		}
	}
}

// Close stops following and then closes the partitions, as journal.Partition.Close does; ctx bounds the time for that.
// It is idempotent, and returns the same error each time.
func (e *Engine[S]) Close(ctx context.Context) error {
	e.closed.Do(func() {
		if e.stop != nil {
			e.stop()
		}
		e.running.Wait()
		for _, p := range e.parts.All() {
			e.erased.forget(p.Index())
			e.expired.forget(p.Index())
		}
		e.err = e.parts.Close(ctx)
	})
	return e.err
}

// ErrNotOpen is returned by Ready of a service whose journal is not open.
var ErrNotOpen = errors.New("plane: not started")

// Ready returns nil while all partitions can serve; one that cannot be written counts as
// able to until journal.Config.UnhealthyAfter has passed. A nil Engine, which is that of a
// service before Start, returns ErrNotOpen.
func (e *Engine[S]) Ready() error {
	if e == nil {
		return ErrNotOpen
	}
	return e.parts.Health()
}

// Stalled returns the longest time for which a partition could not be written, counted
// until now; 0 while all can be, and for a nil Engine.
func (e *Engine[S]) Stalled() time.Duration {
	if e == nil {
		return 0
	}
	var longest time.Duration
	for _, p := range e.parts.All() {
		longest = max(longest, p.Stalled())
	}
	return longest
}

// Stall returns for how long the partition of an agent could not be written, in total
// since it was opened, and whether it cannot be written now. A lease is extended by what
// the total grew, and ends only while the partition can be written.
func (e *Engine[S]) Stall(namespace, agentID string) (total time.Duration, now bool) {
	p := e.For(namespace, agentID)
	return p.StallTotal(), p.Stalled() > 0
}

// Settle waits until everything that was given to the partitions before, by handlers and by
// following, has been decided and is durable, and until no snapshot is being written.
func (e *Engine[S]) Settle(ctx context.Context) error {
	for _, p := range e.parts.All() {
		for range 2 { // a snapshot that the first one made due begins before the second
			_, _, err := journal.Do(ctx, p, journal.Op[S, struct{}]{
				Method: "settle", Actor: *System(""),
				Decide: func(S, journal.Env) (d journal.Decision[struct{}], _ error) { return d, nil },
			})
			if err != nil {
				return err
			}
		}
		if err := p.SettleSnapshot(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Hinted reports whether a follower in this process receives an agent's events before they
// are durable.
func (e *Engine[S]) Hinted(namespace, agentID string) bool {
	return e.deps.Feeds.Of(e.cfg.Plane, e.For(namespace, agentID).Index()).Hinted()
}

// For returns the partition of an agent, or one that refuses everything with
// journal.ErrNotHeld if that is not among the engine's.
func (e *Engine[S]) For(namespace, agentID string) *journal.Partition[S] {
	return e.parts.For(namespace, agentID)
}

// All returns all partitions in order.
func (e *Engine[S]) All() []*journal.Partition[S] { return e.parts.All() }

// Command is a mutation.
type Command[S journal.State, R any] struct {
	Method    string
	AgentID   string
	RequestID string
	Args      proto.Message
	// Equivalent are arguments that mean the same as Args (see journal.Op).
	Equivalent []proto.Message
	// Decide is the rule. Answer builds the response from its events, also for a repeated
	// request.
	Decide func(s S, env journal.Env) (journal.Decision[R], error)
	Answer func(events []*journal.Event) (R, error)
	// Frees marks a command that ends or removes something (see journal.Op).
	Frees bool
	// FollowUp marks an expected follow-up: a command that Config.OnApply announced.
	FollowUp bool
	// Actor is the actor instead of the caller, for what the plane does by itself.
	Actor *journal.Actor
}

// Do executes a mutation as the caller, or as Command.Actor, and returns when it is durable
// (SPEC X1). Errors are those of journal.Do.
func Do[S journal.State, R any](ctx context.Context, e *Engine[S], c Command[S, R]) (R, error) {
	reply, _, err := DoResult(ctx, e, c)
	return reply, err
}

// DoResult is Do, and also returns whether the request was repeated, and the wal_seq of its last event, or of the state
// that it saw if it has none.
func DoResult[S journal.State, R any](ctx context.Context, e *Engine[S], c Command[S, R]) (R, journal.Result, error) {
	actor := Recorded(rpc.ActorFrom(ctx))
	if c.Actor != nil {
		actor = *c.Actor
	}
	reply, result, err := journal.Do(ctx, e.For(actor.Namespace, c.AgentID), journal.Op[S, R]{
		Method: c.Method, Actor: actor, AgentID: c.AgentID,
		RequestID: c.RequestID, Recall: c.RequestID != "" && rpc.Recalling(ctx), Args: c.Args, Equivalent: c.Equivalent,
		FollowUp: c.FollowUp, Frees: c.Frees,
		Decide: c.Decide, Answer: c.Answer,
	})
	if result.Replayed {
		rpc.Replayed(ctx)
	}
	return reply, result, err
}

// View reads the partition of one of the caller's agents. What it returns is durable (SPEC
// X1), as of the journal position that it also returns. Before it reads it waits for the
// positions that the caller gave with After, but not longer than After says.
func View[S journal.State, R any](ctx context.Context, e *Engine[S], agentID string, read func(s S) (R, error)) (R,
	int64, error,
) {
	namespace := rpc.ActorFrom(ctx).Namespace
	if positions := positionsOf(ctx); len(positions) > 0 {
		e.awaitPositions(ctx, namespace, agentID, positions)
	}
	if e.deps.Arrive != nil { // in simulations; it asks ReadOf
		ctx = context.WithValue(ctx, readOf{}, agentID)
	}
	out, seq, err := journal.View(ctx, e.For(namespace, agentID), read)
	return out, int64(seq & (1<<63 - 1)), err // a wal_seq never needs the highest bit
}

// readOf is the context key of the agent that a View is about.
type readOf struct{}

// ReadOf returns the agent that a View is about, for Deps.Arrive.
func ReadOf(ctx context.Context) string {
	agentID, _ := ctx.Value(readOf{}).(string)
	return agentID
}

// OnBehalf sets the actor of events that a plane writes because of another plane's event to
// the actor of that event, if it is a person or an agent (SPEC X4, W11). The effects of
// actions of the system and of outside systems have the system as actor.
func OnBehalf(cause *journal.Event, events []*journal.Event) []*journal.Event {
	switch cause.Role {
	case rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent:
		for _, ev := range events {
			ev.By(cause)
		}
	}
	return events
}

// System returns the actor of what a plane does by itself, such as firing a timer.
func System(namespace string) *journal.Actor {
	return &journal.Actor{Namespace: namespace, Principal: "quartet", Role: rpc.RoleService}
}

// NeverMade returns NOT_FOUND if an agent that a plane has nothing about never existed, so
// that a mistyped name does not look like an agent with an empty list. It returns nil if exists is nil or
// fails with another error, and for calls of other services, which use existing names.
func NeverMade(ctx context.Context, agentID string, exists func(ctx context.Context, agentID string) error) error {
	if exists == nil || rpc.ActorFrom(ctx).Role == rpc.RoleService {
		return nil
	}
	if err := exists(ctx, agentID); errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// Key identifies a record whose id is unique in its namespace only, such as an agent.
type Key struct{ Namespace, ID string }

// Compare orders keys by namespace, then by id.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.ID, other.ID))
}

func (k Key) String() string { return k.Namespace + "/" + k.ID }

// KeyOf returns the Key of an id in a namespace.
func KeyOf(namespace, id string) Key { return Key{namespace, id} }
