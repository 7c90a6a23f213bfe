// Package journaltest has what tests of journals share.
//
// Owns: the suites that every implementation of framelog.Log and archive.Store passes; tests of partitions with a small
// plane, in which a command puts a key, which is one event; a log, an archive and a store of snapshots in memory, which
// pass the same suites and are also for planes that run without a broker; FaultLog, which injects faults into a log;
// the check that a plane's state can be written and read in pages.
package journaltest

import (
	"errors"
	"fmt"
	"maps"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// State counts puts by key, and by key and value. The payload is an existing message type:
// reason is the key, domain the value.
type State struct {
	Puts   map[string]int
	Values map[string]int
	Log    []string // key=value, in order
	Seq    uint64
}

// New returns an empty State.
func New() *State { return &State{Puts: map[string]int{}, Values: map[string]int{}} }

// ErrPoison is returned by Apply for the key poison.
var ErrPoison = errors.New("poison")

// Apply implements journal.State.
func (s *State) Apply(ev *journal.Event) error {
	m, ok := ev.Payload.(*errdetails.ErrorInfo)
	if !ok {
		return fmt.Errorf("payload is a %T", ev.Payload)
	}
	if m.GetReason() == "poison" {
		return ErrPoison
	}
	s.Puts[m.GetReason()]++
	s.Values[m.GetReason()+"="+m.GetDomain()]++
	s.Log = append(s.Log, m.GetReason()+"="+m.GetDomain())
	s.Seq = ev.WalSeq
	return nil
}

// Clone copies the state for comparison.
func (s *State) Clone() *State {
	return &State{maps.Clone(s.Puts), maps.Clone(s.Values), append([]string(nil), s.Log...), s.Seq}
}

// Registry returns the registry of the events of State.
func Registry() *journal.Registry {
	return journal.NewRegistry(errdetails.File_google_rpc_error_details_proto)
}

// Config returns a complete Config over log.
func Config(log framelog.Log) journal.Config[*State] {
	return journal.Config[*State]{Log: log, Plane: "test", New: New, Registry: Registry(), NewID: id.New().New}
}

// Actor is the actor of all commands of these tests.
var Actor = journal.Actor{Namespace: "default", Principal: "tester", Role: "operator"}

// Event returns the event of one put.
func Event(key, value string) *journal.Event {
	return &journal.Event{Payload: &errdetails.ErrorInfo{Reason: key, Domain: value}}
}

// Put returns the command that puts key. Its response is how often key was put, including
// this time.
func Put(key, value, requestID string) journal.Op[*State, int] {
	return journal.Op[*State, int]{
		Method: "Put", Actor: Actor, AgentID: key, RequestID: requestID,
		Args: &errdetails.ErrorInfo{Reason: key, Domain: value},
		Decide: func(s *State, _ journal.Env) (journal.Decision[int], error) {
			ev := Event(key, value)
			ev.Payload.(*errdetails.ErrorInfo).Metadata = map[string]string{"n": strconv.Itoa(s.Puts[key] + 1)}
			return journal.Decision[int]{Events: []*journal.Event{ev}}, nil
		},
		Answer: func(events []*journal.Event) (int, error) {
			return strconv.Atoi(events[0].Payload.(*errdetails.ErrorInfo).GetMetadata()["n"])
		},
	}
}

// Count returns a read of how often key was put.
func Count(key string) func(*State) (int, error) {
	return func(s *State) (int, error) { return s.Puts[key], nil }
}

// Snapshot returns a copy of the state. It is a read.
func Snapshot(s *State) (*State, error) { return s.Clone(), nil }
