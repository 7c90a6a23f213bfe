package journal

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// Op is one journal command: a rule with its arguments and its request id.
type Op[S State, R any] struct {
	// Method scopes the request id together with the actor's namespace and principal (SPEC X2).
	Method string
	Actor  Actor
	// AgentID is the agent of those events that name none.
	AgentID string
	// RequestID is the caller's name for the request. If it is empty the loop generates one, so that R5 holds
	// for every command, but then the caller cannot repeat the request.
	RequestID string
	// Recall requests the first outcome of RequestID and nothing else: if the request is not remembered, the
	// command is refused with NOT_FOUND and Decide does not run.
	Recall bool
	// FollowUp marks a command that Config.OnApply announced.
	FollowUp bool
	// Frees marks a command that ends or removes something: it may use a part of the store's reserve
	// (framelog.Room.Check).
	Frees bool
	// Args is hashed without its field request_id, to distinguish a repeated request from a different one with
	// the same id. It is used only with RequestID.
	Args proto.Message
	// Equivalent are arguments that mean the same as Args, such as Args with digests under
	// another key. The first request with the same id may have had any of them.
	Equivalent []proto.Message
	// Decide is the rule. It is pure (R7), runs in the partition's loop, and may run more than once. The state
	// may include events that are not durable yet; Do returns after they are. It must not keep or change s.
	Decide func(s S, env Env) (Decision[R], error)
	// Answer builds the reply from the command's events. It is pure and runs outside the loop, also for a
	// repeated request whose events are read from the log. If it is nil, or Decide returned no events,
	// Decision.Reply is the reply; a repeated request whose Answer is nil gets the zero value, since Decide does
	// not run.
	Answer func(events []*Event) (R, error)
}

// The stages of a command. A caller whose context ends may withdraw it from stageQueued and stageDecided, but
// not from stageTaken. The loop takes it from stageQueued only.
const (
	stageQueued int32 = iota
	stageTaken
	stageWithdrawn
	stageDecided // decided without events; it waits until the state it read is durable
)

// command is an Op with its types erased. The loop owns it from the moment it takes it until done is closed.
type command[S State] struct {
	// decide runs the rule once. It is nil for the command of a source frame, which has consume instead.
	decide  func(s S, env Env) ([]*Event, error)
	consume *consumption[S]

	method     string
	actor      Actor
	agentID    string
	requestID  string
	explicitID bool // requestID was given by the caller, not by the loop
	recallOnly bool // Op.Recall
	followUp   bool // Op.FollowUp
	frees      bool // Op.Frees
	argsHash   uint64
	equivalent []uint64 // hashes of Equivalent
	key        requests.Key
	// traceparent is the trace that the events belong to, "" if the command is not traced.
	traceparent string

	stage  atomic.Int32
	stored bool // its events are applied and in a frame of loop.frames
	ran    bool // its events were in a frame before a reload; that frame may be in the log

	// The loop writes these fields before it closes done. Others read them only afterwards.
	done     chan struct{}
	events   []*Event
	err      error
	replayed bool
	seq      uint64
	recall   *recallAt
}

// recallAt says where the log holds the events of a repeated request.
type recallAt struct {
	frame uint64 // sequence number of the frame in the log
	first uint64 // wal_seq of the first event
	count uint32
}

// Do runs one command and returns once its events are on disk (SPEC X1).
//
// A refusal of Decide is returned unchanged, once the state that Decide saw is durable. An error of the log, a context
// that ends before the outcome is known, and a partition that is not held any more are UNAVAILABLE with the reason
// STORAGE and the metadata key outcome: "none" means that this call stored nothing, and "unknown" that only a
// repetition with the same request id can determine it (SPEC X1). A lost lease also replaces a refusal or a reply
// without events, because the state that Decide saw may have been outdated. The reason REQUEST_ID_REUSED means that the
// id was used with other arguments, TOO_LARGE that an event or the command exceeds its limit or the log's, and
// STORAGE_FULL that the store has no room. A rule that panics, or whose events State.Apply refuses, is INTERNAL and
// stores nothing.
func Do[S State, R any](ctx context.Context, p *Partition[S], op Op[S, R]) (R, Result, error) {
	// Erase the types of op. The rule leaves its reply in reply, which is read once the loop has completed c.
	var zero, reply R
	c := &command[S]{
		method:   op.Method,
		actor:    op.Actor,
		agentID:  op.AgentID,
		followUp: op.FollowUp,
		frees:    op.Frees,
		done:     make(chan struct{}),
	}
	c.decide = func(s S, env Env) ([]*Event, error) {
		d, err := op.Decide(s, env)
		if err != nil {
			return nil, err
		}
		reply = d.Reply
		if d.Remember && len(d.Events) == 0 && op.RequestID != "" {
			payload, err := requests.StoreReply(reply)
			if err != nil {
				return nil, fault.Internal(err)
			}
			return []*Event{{Type: TypeRequestAnswered, Payload: payload}}, nil
		}
		return d.Events, nil
	}

	// Hash the request, by which a repetition is recognised.
	if op.RequestID != "" {
		h, err := requests.HashArgs(op.Args)
		if err != nil {
			return zero, Result{}, fault.Internal(err)
		}
		c.explicitID, c.recallOnly, c.requestID, c.argsHash = true, op.Recall, op.RequestID, h
		for _, args := range op.Equivalent {
			if h, err = requests.HashArgs(args); err != nil {
				return zero, Result{}, fault.Internal(err)
			}
			c.equivalent = append(c.equivalent, h)
		}
		c.key = requests.KeyOf(cmp.Or(op.Actor.Namespace, event.NoNamespace), op.Actor.Caller(), op.Method,
			op.RequestID)
	}

	// Wait for the outcome.
	if p.cfg.Tracer.On() {
		var span trace.Span
		ctx, span, c.traceparent = beginSpan(ctx, p.cfg.Tracer, p.cfg.Plane, p.cfg.Partition, c.method)
		defer func() { p.endSpan(span, c) }()
	}
	if err := p.run(ctx, c); err != nil {
		return zero, Result{}, err
	}
	res := Result{Replayed: c.replayed, Seq: c.seq}
	if len(c.events) == 0 && c.recall == nil && !p.held() {
		// It wrote nothing, so no append verified that this process still holds the partition.
		return zero, Result{}, leaseLost()
	}
	if c.err != nil {
		return zero, Result{}, c.err
	}

	// Build the reply from the events, which the log has if the request is a repetition.
	events := c.events
	if c.recall != nil {
		var err error
		if events, err = p.recallEvents(ctx, c.recall); err != nil {
			return zero, Result{}, unavailable(outcomeNone, "the first answer to this request could not be "+
				"read back", err)
		}
		// If events were erased or removed since, there is no first answer any more.
		if slices.ContainsFunc(events, func(ev *Event) bool { return ev.Type == event.TypeLineErased }) {
			return zero, Result{}, requests.Unknown(c.requestID)
		}
	}
	if len(events) == 1 && events[0].Type == TypeRequestAnswered {
		out, err := requests.LoadReply[R](events[0].Payload)
		if err != nil {
			return zero, Result{}, fault.Internal(err)
		}
		return out, res, nil
	}
	if len(events) == 0 || op.Answer == nil && !c.replayed {
		return reply, res, nil
	}
	if op.Answer == nil {
		return zero, res, nil
	}
	out, err := op.Answer(events)
	if err != nil {
		return zero, Result{}, err
	}
	return out, res, nil
}

// endSpan ends span, which is that of c, and does nothing if span is nil.
func (p *Partition[S]) endSpan(span trace.Span, c *command[S]) {
	if span == nil {
		return
	}
	select {
	case <-c.done:
		endSpan(span, len(c.events), c.seq, c.replayed, c.err != nil)
	default: // the caller stopped waiting; the loop may still write to c
		unknownSpan(span)
	}
}

// run enqueues c and blocks until the loop has completed it or ctx ends. Its error says why there is no outcome; the
// outcome itself is in c.
func (p *Partition[S]) run(ctx context.Context, c *command[S]) error {
	p.cfg.Arrive(ctx, c.method, c.agentID, c.requestID) // does nothing, except in simulations
	if err := ctx.Err(); err != nil {
		return unavailable(outcomeNone, "the request ended before it was accepted", err)
	}
	if err := p.enqueue(c); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}

	// The caller gives up. If the loop has not taken c, or c only waits to be answered, it can be withdrawn.
	select {
	case <-c.done: // both were ready; the outcome takes precedence
		return nil
	default:
	}
	if c.stage.CompareAndSwap(stageQueued, stageWithdrawn) || c.stage.CompareAndSwap(stageDecided, stageWithdrawn) {
		return unavailable(outcomeNone, "the deadline passed before the journal took the request", ctx.Err())
	}
	return unavailable(outcomeUnknown, "the deadline passed while the journal was writing; repeat with the "+
		"same request_id to learn what happened", ctx.Err())
}

// View runs a read-only function and returns its result, or its error unchanged, with the wal_seq of the state that it
// saw, once that state is durable (R4). With a context of Ahead it does not wait for that, unless the state is hidden
// because it is to be reloaded. read is called with the partition's read lock held and may be called more than once.
// What it returns must be copies, or messages that are replaced and never edited. View fails with UNAVAILABLE when the
// state is not durable after Config.ViewPatience or when ctx ends, or when this process no longer holds the partition.
func View[S State, R any](ctx context.Context, p *Partition[S], read func(s S) (R, error)) (R, uint64, error) {
	var zero R
	for {
		p.cfg.Arrive(ctx, "view", "", "") // does nothing, except in simulations

		// Read. If evicted owners cannot be read, wait for the reload and read again.
		out, seq, result, err := readState(p, read)
		if errors.Is(err, resident.ErrUnreadable) {
			if err = p.awaitReload(ctx, err); err != nil {
				return zero, 0, err
			}
			continue
		}

		// Wait until what was read is durable. If it was discarded instead, read again.
		if result != nil && (result.Hidden() || ctx.Value(aheadKey{}) != any(p)) {
			if err := result.Wait(ctx, p.cfg.ViewPatience); err != nil {
				return zero, 0, err
			}
			if result.Lost() {
				continue
			}
		}

		// The lease is checked after the read, so that no other process can have written before it.
		if p.failed.Load() != nil {
			return zero, 0, p.refusal()
		}
		if !p.held() {
			return zero, 0, leaseLost()
		}
		if err != nil {
			return zero, 0, err
		}
		return out, seq, nil
	}
}

// aheadKey is the context key of Ahead. Its value is the partition.
type aheadKey struct{}

// Ahead lets Views of p under the returned context show state that is not durable yet. It is for preparing a
// command on p and must not reveal what was read by any other way than that command's answer: the answer waits
// for the frames that were read, and the command's rule verifies that they still apply.
func Ahead[S State](ctx context.Context, p *Partition[S]) context.Context {
	return context.WithValue(ctx, aheadKey{}, p)
}

// readState calls read under the read lock, which is released even if read panics. It also returns seq, the
// wal_seq of the state that was read, and the frame outcome that the state depends on, nil if it is durable. If read
// panics because evicted owners cannot be read, that is err, which wraps resident.ErrUnreadable.
func readState[S State, R any](p *Partition[S], read func(s S) (R, error)) (out R, seq uint64, result *frameOutcome,
	err error,
) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if unread := snapshot.Guarded(func() { out, err = read(p.core.state) }); unread != nil {
		err = unread
	}
	return out, p.core.applied, p.uncommitted, err
}

// micros returns a time in UTC, truncated to microseconds, the resolution of every time in the journal.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
