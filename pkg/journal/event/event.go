// Package event is one event of a journal: its fields, the line of a frame that it is written as, and the types of
// payloads. It also knows which owners of a partition's records were erased, by hashes of their names.
package event

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Event is one fact: one line of a frame. A rule must set Payload. The loop sets WalSeq, Type, Method, RequestID and
// RequestHash, Traceparent if there is a trace, and in commands the actor, whatever the rule put there; it fills in ID,
// Namespace, Plane, AgentID and CreatedAt if the rule left them empty. After a rule has returned an event the event
// must not be changed; State, Answer and OnCommit share it.
type Event struct {
	WalSeq     uint64 // per partition, from 1; without gaps within an incarnation of the journal
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

// By gives an event of a reaction the actor of the event that caused it. It has no effect on an event of a
// command, whose actor is always the caller; only an ActorRunID remains if the caller has no run id.
func (ev *Event) By(cause *Event) {
	ev.ActorNamespace, ev.ActorAgentID, ev.ActorRunID, ev.ActorKeyID = cause.ActorNamespace, cause.ActorAgentID,
		cause.ActorRunID, cause.ActorKeyID
	ev.Principal, ev.Role = cause.Principal, cause.Role
}

// NoNamespace stands for the namespace of an actor that has none, in the scope of its request ids.
const NoNamespace = "-"

// CallerNamespace returns the namespace of the event's actor, NoNamespace if it has none.
func (ev *Event) CallerNamespace() string {
	return cmp.Or(ev.ActorNamespace, ev.Namespace, NoNamespace)
}

// Types of the events that belong to the journal itself. State.Apply never receives them.
const (
	TypePartitionOpened  = "partition_opened"  // {generation}
	TypeSourceConsumed   = "source_consumed"   // {plane, partition, sequence, line?, consumed}
	TypeRequestAnswered  = "request_answered"  // {message, reply}: a request that changed nothing
	TypeIncarnationBegan = "incarnation_began" // {behind, cause}: see framelog.Beginning
	TypeSnapshotTaken    = "snapshot_taken"    // {snapshot, manifest, hash}: see package snapshot
	TypeOwnerErased      = "owner_erased"      // {key, owner}: see ErasedSet
	TypeLineErased       = "line_erased"       // {}: in place of an event that was erased; see package framelog
)

// Internal reports whether an event type belongs to the journal itself, and is not shown to people.
func Internal(eventType string) bool {
	switch eventType {
	case TypePartitionOpened, TypeSourceConsumed, TypeRequestAnswered, TypeIncarnationBegan, TypeSnapshotTaken,
		TypeOwnerErased, TypeLineErased:
		return true
	}
	return false
}

// ErrUnknown is what State.Apply returns, wrapped by Unknown, for an event type that it has no case
// for: the type was added to the plane's events but not to its fold.
var ErrUnknown = errors.New("journal: unknown event")

// Unknown returns the error for an event type that a switch of State.Apply has no case for. It wraps ErrUnknown.
func Unknown(ev *Event) error {
	return fmt.Errorf("%w %s (%T)", ErrUnknown, ev.Type, ev.Payload)
}
