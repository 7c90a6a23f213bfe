package journal

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/requests"
)

// Event is one fact: one line of a frame. A rule must set Payload. The loop sets WalSeq, Type, Method, RequestID and
// RequestHash, Traceparent if there is a trace, and in commands the actor, whatever the rule put there; it fills in ID,
// Namespace, Plane, AgentID and CreatedAt if the rule left them empty. After a rule has returned an event the event
// must not be changed; State, Answer and OnCommit share it.
type Event struct {
	WalSeq     uint64 // per partition, from 1, no gaps
	ID         string // evt_..., never changes
	Type       string // snake_case of the payload message's name
	Namespace  string // default: the actor's
	Plane      string // default: the partition's
	AgentID    string // default: the command's
	SessionID  string
	TaskID     string
	StepID     string
	WorkItemID string

	ActorNamespace string // set only where it differs from Namespace
	ActorAgentID   string
	ActorRunID     string
	ActorKeyID     string // the API key with which the actor called, if it was one
	Principal      string
	Role           string

	Method      string // together with RequestID the scope of the request memory
	RequestID   string
	RequestHash string // hexadecimal; empty if the loop generated the request id

	// Traceparent is the trace that the event belongs to, as W3C Trace Context, and "" if it is not traced;
	// then the line has no such field.
	Traceparent string

	ReadinessFrom   string // SPEC X10; the three are omitted when empty
	ReadinessTo     string
	ReadinessReason string

	Payload   proto.Message
	CreatedAt time.Time // UTC, microseconds
}

// By sets the actor of an event of a reaction to that of the event that caused it. In commands the actor is
// always the caller; only the ActorRunID that a rule set is kept if the caller has no run id.
func (ev *Event) By(cause *Event) {
	ev.ActorNamespace, ev.ActorAgentID, ev.ActorRunID, ev.ActorKeyID = cause.ActorNamespace, cause.ActorAgentID, cause.ActorRunID, cause.ActorKeyID
	ev.Principal, ev.Role = cause.Principal, cause.Role
}

// Types of the events that belong to the journal itself. State.Apply never receives them.
const (
	TypePartitionOpened  = "partition_opened"  // {generation}
	TypeSourceConsumed   = "source_consumed"   // {plane, partition, sequence, line?, consumed}
	TypeRequestAnswered  = "request_answered"  // {message, reply}: a request that changed nothing
	TypeIncarnationBegan = "incarnation_began" // {behind, cause}: see package incarnation
)

// Internal reports whether an event type belongs to the journal itself, and is not shown to people.
func Internal(eventType string) bool {
	return eventType == TypePartitionOpened || eventType == TypeSourceConsumed || eventType == TypeRequestAnswered || eventType == TypeIncarnationBegan
}

// State is what a partition holds in memory.
//
// Apply is pure: the same state and event give the same result. It uses no clock and no I/O, and keeps nothing
// of the event but its payload, which is replaced and never edited. It is called with the partition's write
// lock held, except while a partition loads. An error means that state and log do not match: the partition refuses
// the command and reloads; while it loads, loading fails.
type State interface {
	Apply(ev *Event) error
}

// Actor is who makes a call (SPEC X4). It comes from the credential.
type Actor struct {
	Namespace string
	Principal string
	Role      string
	AgentID   string
	RunID     string
	KeyID     string
}

// Caller returns what request ids of the actor are scoped by beside its namespace.
func (a Actor) Caller() string { return requests.CallerOf(a.Principal, a.AgentID, a.KeyID) }

// Env is all that a rule may know beyond its state and its arguments.
type Env struct {
	Now   time.Time // UTC, microseconds
	Actor Actor
	NewID func(prefix string) string
	// Traceparent is the trace that the command or reaction belongs to, "" if it is not traced. A rule may
	// store it in a record from which work continues later.
	Traceparent string
}

// Decision is the result of a rule: events in order, or no events and the reply itself. With events, Reply is used
// only if Op.Answer is nil.
type Decision[R any] struct {
	Events []*Event
	Reply  R
	// Remember stores a Reply without events under the caller's request id, so that a repetition returns it
	// although the state has changed since (SPEC X2). Reply must be a message. Nobody but the request memory
	// reads what is stored: it is no event of the plane. Without a request id nothing is stored.
	Remember bool
}

// Result describes how a command was completed.
type Result struct {
	Replayed bool   // the request was repeated: this is its first outcome and nothing changed
	Seq      uint64 // wal_seq of the command's last event, or of the state it saw if it has no events
}

// ErrUnknownEvent is what State.Apply returns, wrapped by UnknownEvent, for an event type that it has no case
// for: the type was added to the plane's events but not to its fold.
var ErrUnknownEvent = errors.New("journal: unknown event")

// UnknownEvent is the default case of State.Apply and of every switch over all event types of a plane.
func UnknownEvent(ev *Event) error {
	return fmt.Errorf("%w %s (%T)", ErrUnknownEvent, ev.Type, ev.Payload)
}
