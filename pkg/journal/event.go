package journal

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Event is one fact: one line of a frame. The loop fills in whatever a rule
// leaves empty, except Payload. Once it was handed over an event is never
// changed again; State, Answer and OnCommit share it.
type Event struct {
	WalSeq     uint64 // per partition, from 1, no gaps
	ID         string // evt_..., stable for ever
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
	Principal      string
	Role           string

	Method      string // with RequestID the scope of the request memory
	RequestID   string
	RequestHash string // hex; empty where the loop gave the request id

	// Traceparent is the trace that the event is part of, as W3C Trace Context; ""
	// where it is not traced, and then nothing of it is on the line.
	Traceparent string

	ReadinessFrom   string // SPEC X10; the three are omitted when empty
	ReadinessTo     string
	ReadinessReason string

	Payload   proto.Message
	CreatedAt time.Time // UTC, microseconds
}

// By gives an event of a reaction the actor of the event that caused it. What a
// command commits is always its caller's.
func (ev *Event) By(cause *Event) {
	ev.ActorNamespace, ev.ActorAgentID, ev.ActorRunID = cause.ActorNamespace, cause.ActorAgentID, cause.ActorRunID
	ev.Principal, ev.Role = cause.Principal, cause.Role
}

// Events that belong to the journal itself. State.Apply never sees them.
const (
	TypePartitionOpened = "partition_opened" // {generation}
	TypeSourceConsumed  = "source_consumed"  // {plane, partition, sequence, line?}
)

// Internal reports whether an event type belongs to the journal itself and to
// no plane. Readers for people may skip such lines.
func Internal(eventType string) bool {
	return eventType == TypePartitionOpened || eventType == TypeSourceConsumed
}

// State is what a partition holds in memory.
//
// Apply is pure: same state and event, same result, no clock, no I/O, nothing
// kept of the event but its payload, which is replaced and never edited. It is
// called with the partition's write lock held. An error means that state and
// log disagree: the partition refuses the command and loads again.
type State interface {
	Apply(ev *Event) error
}

// Actor is who acts (SPEC X4). It comes from the credential.
type Actor struct {
	Namespace string
	Principal string
	Role      string
	AgentID   string
	RunID     string
}

// Env is all that a rule may know beyond its state and its arguments.
type Env struct {
	Now   time.Time // UTC, microseconds
	Actor Actor
	NewID func(prefix string) string
	// Traceparent is what the command or reaction is part of, "" if it is not
	// traced. A rule may keep it in a record that something goes on from.
	Traceparent string
}

// Decision is what a rule answers: events in order, or no events and the reply
// itself.
type Decision[R any] struct {
	Events []*Event
	Reply  R
}

// Result says how a command ended.
type Result struct {
	Replayed bool   // a repeated request: the first answer, nothing changed
	Seq      uint64 // wal_seq of the command's last event; without events, of the state it saw
}

// ErrUnknownEvent is what State.Apply returns, wrapped by UnknownEvent, for an event that it
// has no case for: a type was added to the plane's events and not to its fold.
var ErrUnknownEvent = errors.New("journal: unknown event")

// UnknownEvent is the default case of State.Apply, and of every other switch that must know
// each event type of its plane.
func UnknownEvent(ev *Event) error {
	return fmt.Errorf("%w %s (%T)", ErrUnknownEvent, ev.Type, ev.Payload)
}
