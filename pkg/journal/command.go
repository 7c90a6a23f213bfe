package journal

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/requests"
)

// Op is one command.
type Op[S State, R any] struct {
	// Method scopes the request id together with the actor's namespace and
	// principal (SPEC X2).
	Method string
	Actor  Actor
	// AgentID is the default for events that name no agent.
	AgentID string
	// RequestID is the caller's. Where it is empty the loop gives one, so that
	// R5 holds for every command, but the caller cannot repeat the request.
	RequestID string
	// Recall asks for the first answer to RequestID alone: where there was none the
	// command is refused with NOT_FOUND, and Decide does not run.
	Recall bool
	// Sequel marks what OnApply announces.
	FollowUp bool
	// Args is hashed, without its field request_id, to tell a repeated request
	// from another one under the same id. Used only with RequestID.
	Args proto.Message
	// Decide is the rule: pure (R7), run in the partition's loop, possibly more
	// than once. It may see earlier events that are not durable yet, since it
	// is answered after them. It must not keep or change s.
	Decide func(s S, env Env) (Decision[R], error)
	// Answer builds the reply from the command's events: pure, run outside the
	// loop, also for a repeated request whose events come from the log. When it
	// is nil, or Decide gave no events, Decision.Reply is the reply.
	Answer func(events []*Event) (R, error)
}

// Stages of a command. A caller whose context ends may take it back from
// stageQueued and stageSettled, never from stageTaken; the loop takes it from
// stageQueued only.
const (
	stageQueued int32 = iota
	stageTaken
	stageWithdrawn
	stageDecided // decided, without effect: it only waits for the state it saw
)

// command is an Op with its types erased.
type command[S State] struct {
	// decide runs the rule once. For consumers it is nil and consume is set.
	decide  func(s S, env Env) ([]*Event, error)
	consume *consumption[S]

	method     string
	actor      Actor
	agentID    string
	requestID  string
	explicitID bool // requestID is the caller's
	recallOnly bool // and nothing but its first answer is wanted
	followUp   bool // Op.Sequel
	argsHash   uint64
	key        requests.Key
	// traceparent is what the events are part of; "" where nothing is traced.
	traceparent string

	stage  atomic.Int32
	stored bool // its events are applied and on their way to the log
	ran    bool // they were once, in a state that was lost since

	// Written by the loop before done is closed, read after.
	done     chan struct{}
	events   []*Event
	err      error
	replayed bool
	seq      uint64
	recall   *recallAt
}

// recallAt says where the events of a repeated request are in the log.
type recallAt struct {
	frame uint64 // sequence in the log
	first uint64 // wal_seq
	count uint32
}

// Do runs one command and returns when its events are on disk (SPEC X1).
//
// A refusal of Decide is returned as it is, once the state it saw is durable.
// Trouble with the log is UNAVAILABLE STORAGE with the metadata outcome: "none"
// means that nothing was stored, "unknown" that only a repetition with the same
// request id can tell (SPEC X1). REQUEST_ID_REUSED: the id was used with other
// arguments.
func Do[S State, R any](ctx context.Context, p *Partition[S], op Op[S, R]) (R, Result, error) {
	var zero, reply R
	c := &command[S]{
		method:   op.Method,
		actor:    op.Actor,
		agentID:  op.AgentID,
		followUp: op.FollowUp,
		done:     make(chan struct{}),
	}
	c.decide = func(s S, env Env) ([]*Event, error) {
		d, err := op.Decide(s, env)
		if err != nil {
			return nil, err
		}
		reply = d.Reply
		return d.Events, nil
	}
	if op.RequestID != "" {
		h, err := requests.HashArgs(op.Args)
		if err != nil {
			return zero, Result{}, internal(err)
		}
		c.explicitID, c.recallOnly, c.requestID, c.argsHash = true, op.Recall, op.RequestID, h
		c.key = requests.KeyOf(cmp.Or(op.Actor.Namespace, noNamespace), op.Actor.Principal, op.Method, op.RequestID)
	}
	if p.cfg.Tracer.On() {
		var span trace.Span
		ctx, span = p.startSpan(ctx, c)
		defer func() { p.endSpan(span, c) }()
	}
	if err := p.run(ctx, c); err != nil {
		return zero, Result{}, err
	}
	res := Result{Replayed: c.replayed, Seq: c.seq}
	if len(c.events) == 0 && c.recall == nil && !p.held() {
		// It stored nothing, so the log did not say whose the partition is.
		return zero, Result{}, leaseLost()
	}
	if c.err != nil {
		return zero, Result{}, c.err
	}
	events := c.events
	if c.recall != nil {
		var err error
		if events, err = p.recallEvents(ctx, c.recall); err != nil {
			return zero, Result{}, unavailable(outcomeNone, "the first answer to this request could not be read back", err)
		}
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

// run hands c to the loop and waits for its end or the caller's.
func (p *Partition[S]) run(ctx context.Context, c *command[S]) error {
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
	select {
	case <-c.done: // both were ready: the answer counts
		return nil
	default:
	}
	if c.stage.CompareAndSwap(stageQueued, stageWithdrawn) || c.stage.CompareAndSwap(stageDecided, stageWithdrawn) {
		return unavailable(outcomeNone, "the deadline passed before the journal took the request", ctx.Err())
	}
	return unavailable(outcomeUnknown, "the deadline passed while the journal was writing; repeat with the same request_id to learn what happened", ctx.Err())
}

// View reads. It returns what read found and the wal_seq of the state it saw,
// when that state is durable (R4). read runs with the partition's read lock
// held, maybe more than once; what it returns must be copies or messages that
// are replaced and never edited.
func View[S State, R any](ctx context.Context, p *Partition[S], read func(s S) (R, error)) (R, uint64, error) {
	var zero R
	for {
		out, seq, result, err := readState(p, read)
		if result != nil && (result.hidden || ctx.Value(aheadKey{}) != any(p)) {
			if err := result.wait(ctx, p.cfg.ViewPatience); err != nil {
				return zero, 0, err
			}
			if result.lost {
				continue
			}
		}
		if p.failed.Load() != nil {
			return zero, 0, unavailable(outcomeNone, "the partition is not held here any more", *p.failed.Load())
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

type aheadKey struct{}

// Ahead lets Views of p under the context show what is on its way to the log. It
// is for who prepares a command on p meanwhile and tells nobody what he saw but
// by its answer: that comes after the frames he saw, and the command's rule sees
// whether they are still there.
func Ahead[S State](ctx context.Context, p *Partition[S]) context.Context {
	return context.WithValue(ctx, aheadKey{}, p)
}

// look reads under the lock, which is given back even if read panics.
func readState[S State, R any](p *Partition[S], read func(s S) (R, error)) (out R, seq uint64, f *commitResult, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out, err = read(p.core.state)
	return out, p.core.applied, p.uncommitted, err
}

// fate is what becomes of a frame. done is closed once it is known.
type commitResult struct {
	done   chan struct{}
	lost   bool // read after done: the state that held the frame is gone
	hidden bool // nobody may see the state, not even ahead
}

func newCommitResult() *commitResult { return &commitResult{done: make(chan struct{})} }

// wait returns once it is known what became of the frame.
func (f *commitResult) wait(ctx context.Context, most time.Duration) error {
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-f.done:
		return nil
	case <-patience.C:
		return unavailable(outcomeNone, "the journal could not be written for "+most.String()+", so what stands in it cannot be shown; try again", nil)
	case <-ctx.Done():
		return unavailable(outcomeNone, "the deadline passed before the state that was read was durable", ctx.Err())
	}
}

func (r *commitResult) resolve(lost bool) {
	r.lost = lost
	close(r.done)
}

// micros is the resolution of every time in the journal.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
