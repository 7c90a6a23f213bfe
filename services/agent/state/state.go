// Package state is the state of one partition of the agent plane: its records, the fold
// that applies events to them, and the rules that several operations share. It is pure:
// no clock, no I/O, no goroutines. Records are replaced, never edited, so a record read
// from the state stays valid afterwards.
package state

import (
	"time"

	"github.com/google/btree"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"quartet/services/agent/transcript"
)

const (
	// keptMessages and keptTurns bound what an agent's long life leaves in
	// memory. Older ones are in the journal and in the event stream for ever.
	keptMessages  = 256
	KeptTurns     = 64
	KeptDecisions = 100
)

// State is one partition of the agent plane. Records are replaced, never edited.
type State struct {
	Agents map[ref.Agent]*Agent
	// ready holds the agents that a runner may take, by namespace, the one
	// that has been ready longest first (SPEC D7).
	Ready map[string]*btree.BTreeG[ReadyAgent]
	IDs   *btree.BTreeG[ref.Agent] // every agent, for lists and sweeps
	// acquired finds the turn that a request got, as long as the turn is kept.
	AcquiredTurns map[ref.Request]AcquiredTurn
}

type acquireKey = ref.Request

type AcquiredTurn struct {
	Agent  ref.Agent
	TurnID string
}

// key names an agent.
type key = ref.Agent

// agentState is one agent with its lane and turns.
type Agent struct {
	Namespace     string
	Record        *agentv1.Agent
	Lane          lane.Lane
	OpenTurn      *Turn
	EndedTurns    []*Turn // ended, oldest first
	Decisions     []*agentv1.Decision
	PendingTick   string              // the message of the tick that is queued or in the open turn
	TickDropped   bool                // the last tick was dropped as stale, which frees its key
	Wake          *agentv1.AgentWoken // what woke the agent itself, until a completed turn was told
	wokenAt       time.Time
	FactsRevision int64 // grows with every event of this agent
	ReadySince    time.Time
	// failedTicks are the ticks in a row that no turn survived. What was not
	// told yet is told again, but not for ever (SPEC D4).
	failedTicks int32
	// answered are the commands whose results were answers of their calls.
	AnsweredTasks []string
	// transcript is where all its rounds are.
	Transcript transcript.Index
	Briefs     []BriefRef // oldest first
	// delegations are those of the agent as a parent, oldest first.
	Delegations      []*Delegation
	firstItem        string                 // the first item that a child made
	deletion         *agentv1.AgentDeleting // how its end began
	InheritedContext string                 // what a forked child started from
}

// turnState is a turn with its rounds.
type Turn struct {
	Record *agentv1.Turn
	Rounds []*agentv1.Round
	// settled is what the answer to a round said beside its results, for a
	// runner that asks again; nil where there was nothing.
	Settled   map[int32]*agentv1.RoundSettled
	shownWake *agentv1.AgentWoken // what had woken the agent when the turn began
}

// NewState returns the state of an empty log.
func NewState() *State {
	return &State{
		Agents: map[ref.Agent]*Agent{},
		Ready:  map[string]*btree.BTreeG[ReadyAgent]{},

		AcquiredTurns: map[ref.Request]AcquiredTurn{},
		IDs: btree.NewG(16, func(a, b ref.Agent) bool {
			if a.Namespace != b.Namespace {
				return a.Namespace < b.Namespace
			}
			return a.ID < b.ID
		}),
	}
}

// agent finds an agent of a namespace.
func (s *State) Find(namespace, agentID string) (*Agent, error) {
	a := s.Lookup(ref.Agent{Namespace: namespace, ID: agentID})
	if a == nil {
		return nil, fault.NotFound.Newf("agent %q does not exist; SpawnAgent makes one", agentID).With("agent_id", agentID)
	}
	return a, nil
}

// lookup returns an agent, or nil if it does not exist.
func (s *State) Lookup(k ref.Agent) *Agent { return s.Agents[k] }
