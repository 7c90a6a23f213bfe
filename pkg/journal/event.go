package journal

import (
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
)

// Aliases of the types of package event.
type (
	// Event is one fact: one line of a frame.
	Event = event.Event
	// RawEvent is a line whose payload is not parsed.
	RawEvent = event.Raw
	// Registry maps event types to payload messages.
	Registry = event.Registry
	// Line is one event of a followed frame.
	Line = event.Line
	// Retaining is a State that says which old events it needs.
	Retaining = event.Retaining
)

// Aliases of the types of package follower.
type (
	// Source is a journal that can be followed.
	Source = follower.Source
	// Feeds holds the feeds of the partitions that this process may hold.
	Feeds = follower.Feeds
	// Feed gives the frames of a partition to followers in the same process.
	Feed = follower.Feed
	// Hinter is implemented by a Source that has a Feed.
	Hinter = follower.Hinter
)

// NewFeeds returns an empty set of feeds.
func NewFeeds() *Feeds { return follower.NewFeeds() }

// NewSource returns a Source that reads a partition's log.
func NewSource(plane string, partition int, log framelog.Log) Source {
	return follower.NewSource(plane, partition, log)
}

// Types of the events that belong to the journal itself. State.Apply never receives them.
const (
	TypePartitionOpened  = event.TypePartitionOpened
	TypeSourceConsumed   = event.TypeSourceConsumed
	TypeRequestAnswered  = event.TypeRequestAnswered
	TypeIncarnationBegan = event.TypeIncarnationBegan
	TypeSnapshotTaken    = event.TypeSnapshotTaken
)

// ErrUnknownEvent is wrapped by each error of UnknownEvent.
var ErrUnknownEvent = event.ErrUnknown

// NewRegistry returns a Registry in which every top-level message of the files is an event type.
func NewRegistry(files ...protoreflect.FileDescriptor) *Registry { return event.NewRegistry(files...) }

// ParseLine reads the envelope of one line.
func ParseLine(line []byte) (*RawEvent, error) { return event.ParseLine(line) }

// Internal reports whether an event type belongs to the journal itself.
func Internal(eventType string) bool { return event.Internal(eventType) }

// UnknownEvent returns the error for an event type that a switch of State.Apply has no case for.
func UnknownEvent(ev *Event) error { return event.Unknown(ev) }

// State is what a partition holds in memory.
//
// Apply is pure: the same state and event give the same result. It uses no clock and no I/O. Of the event it may keep
// the payload only, and must not edit it. It is called with the partition's write lock held, except while a partition
// loads. An error means that the state and the log do not match: if the event is that of a command, the partition
// refuses the command and reloads; if it was read by a load, the load fails.
type State interface {
	Apply(ev *Event) error
}

// Paged is a State that is written to snapshots, and read from them, in pages.
type Paged interface {
	State
	snapshot.State
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

// Caller returns the scope of the actor's request ids within its namespace.
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
