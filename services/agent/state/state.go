// Package state is the state of one partition of the agent plane: its records, the fold
// that applies events to them, and the rules that several operations share. It is pure:
// no clock, no I/O, no goroutines. Records are replaced, never edited, so a record read
// from the state stays valid afterwards.
package state

import (
	"time"

	"github.com/google/btree"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/event"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
	"quartet/services/agent/lane"
	"quartet/services/agent/transcript"
)

const (
	// KeptTurns is how many turns of an agent are kept in memory at least, and fewer than packed.GroupSize more. Older
	// records are in the journal and in the event stream.
	KeptTurns = 64
	// KeptDecisions is the same for the decisions of an agent.
	KeptDecisions = 100
)

// State is one partition of the agent plane. Records are replaced, never edited.
type State struct {
	event.Tombstones
	agents *resident.Map[plane.Key, Agent, summary]
	// Ready holds the agents that can take a turn, by namespace, longest ready first
	// (SPEC D7). Only Apply changes it. Each namespace that has agents has an entry.
	Ready  map[string]*btree.BTreeG[ReadyAgent]
	IDs    *btree.BTreeG[plane.Key] // every agent, in order
	LoadID LoadID
	// AcquiredTurns finds the turn that a request got, as long as the turn is kept.
	AcquiredTurns map[TurnRequest]AcquiredTurn
}

// LoadID is the load of the partition that built a state. It tells facts that were read ahead and then lost from those
// that took their place: FactsRevision counts both alike. No page contains it.
type LoadID string

// Comparable returns nothing, since all loads of a log result in the same state.
func (LoadID) Comparable() any { return struct{}{} }

// AcquiredTurn is the turn that an AcquireTurn request got.
type AcquiredTurn struct {
	Agent  plane.Key
	TurnID string
}

// Agent is one agent with its lane and turns. A nil Agent has no delegations. Each field is in the agent's page, see
// State.Page.
type Agent struct {
	Namespace     string
	Record        *agentv1.Agent
	Lane          lane.Lane
	OpenTurn      *Turn
	EndedTurns    EndedTurns
	Decisions     Decisions
	PendingTick   string              // the id of the tick that is queued or in the open turn; empty: none
	TickDropped   bool                // a tick was dropped since the last decision: it may come again
	Wake          *agentv1.AgentWoken // what woke the agent itself, until a completed turn has shown it; nil: nothing
	wokenAt       time.Time           // when the newest wake was recorded; it stays when Wake becomes nil
	FactsRevision int64               // grows with every event of this agent
	ReadySince    time.Time           // since when CanTakeTurn has been true; zero while it is false
	// failedTicks counts ticks in a row on which turns failed. A pending wake is offered
	// again, but not permanently (SPEC D4).
	failedTicks int32
	// AnsweredTasks are the ids of the newest keptAnsweredTasks commands whose calls returned their results.
	AnsweredTasks []string
	// Transcript finds the agent's rounds in the journal.
	Transcript transcript.Index
	Briefs     []briefRef // oldest first
	// Delegations are those of the agent as a parent, oldest first.
	Delegations      []*Delegation
	firstItem        string                 // the first work item that a private child made
	deletion         *agentv1.AgentDeleting // the event with which the deletion began; nil: it has not begun
	InheritedContext string                 // the view with which a forked child started
	// Conversation finds what operators and the agent said, in the journal.
	Conversation Conversation
	stalls       []stall // in the order in which they were counted last
}

// Turn is a turn. Rounds and Settled are nil for ended turns other than the newest keptWithRounds, whose rounds are
// only in the journal. Each field is in the page of its agent.
type Turn struct {
	Record *agentv1.Turn
	Rounds []*agentv1.Round
	// Settled holds, by round, what the response to the round returned beside its
	// results, for a runner that repeats it. A round whose response had nothing else has no entry.
	Settled map[int32]*agentv1.RoundSettled
	// StartedCalls are the calls that the runner reported as started since the last round of
	// an open turn.
	StartedCalls []*agentv1.ToolCall

	// heardBefore is how many utterances there were before the message of the turn, and
	// heardInAll, of an ended turn, how many when it ended.
	heardBefore, heardInAll int

	shownWake *agentv1.AgentWoken // the wake that the turn's context shows
	changed   bool                // whether a call of it changed something
	effects   []uint64            // the fingerprints of its calls that may be repeated
	// Progressed reports whether a settled round had a successful call that changes
	// something (SPEC A5.6); stepped, whether any round had.
	Progressed bool
	stepped    bool
}

// NewState returns the state of an empty log.
func NewState() *State {
	s := &State{
		Ready: map[string]*btree.BTreeG[ReadyAgent]{},

		AcquiredTurns: map[TurnRequest]AcquiredTurn{},
		IDs: btree.NewG(16, func(a, b plane.Key) bool {
			if a.Namespace != b.Namespace {
				return a.Namespace < b.Namespace
			}
			return a.ID < b.ID
		}),
	}
	s.agents = resident.New(resident.Codec[plane.Key, Agent, summary]{
		Page:  s.evictedPage,
		New:   s.NewPage,
		Value: func(k plane.Key, page proto.Message) (*Agent, error) { return agentFrom(k, page.(*agentv1.AgentPage)) },
	})
	return s
}

// addAgent adds an agent that the state does not have.
func (s *State) addAgent(k plane.Key, a *Agent) {
	s.agents.Put(k, a)
	s.IDs.ReplaceOrInsert(k)
	if s.Ready[k.Namespace] == nil {
		s.Ready[k.Namespace] = btree.NewG(16, ReadyAgent.before)
	}
}

// Find returns an agent, or NOT_FOUND.
func (s *State) Find(namespace, agentID string) (*Agent, error) {
	a := s.Lookup(plane.Key{Namespace: namespace, ID: agentID})
	if a == nil {
		return nil, fault.NotFound.Newf("agent %q does not exist; SpawnAgent makes one", agentID).
			With("agent_id", agentID)
	}
	return a, nil
}

// Lookup returns an agent, or nil if it does not exist. The caller must not change it.
func (s *State) Lookup(k plane.Key) *Agent { return s.agents.Get(k) }
