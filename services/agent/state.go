package agent

import (
	"fmt"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"

	"google.golang.org/protobuf/proto"
)

const (
	// keptMessages and keptTurns bound what an agent's long life leaves in
	// memory. Older ones are in the journal and in the event stream for ever.
	keptMessages  = 256
	keptTurns     = 64
	keptDecisions = 100
)

// State is one partition of the agent plane. Records are replaced, never edited.
type State struct {
	agents map[key]*agentState
	// ready holds the agents that a runner may take, by namespace, the one
	// that has been ready longest first (SPEC D7).
	ready map[string]*btree.BTreeG[readyAgent]
	ids   *btree.BTreeG[key] // every agent, for lists and sweeps
	// acquired finds the turn that a request got, as long as the turn is kept.
	acquired map[acquireKey]acquiredTurn
}

type acquireKey = ref.Request

type acquiredTurn struct {
	agent  key
	turnID string
}

// key names an agent.
type key = ref.Agent

type readyAgent struct {
	since time.Time
	id    string
}

// agentState is one agent with its lane and turns.
type agentState struct {
	namespace string
	rec       *agentv1.Agent
	lane      lane.Lane
	turn      *turnState
	turns     []*turnState // ended, oldest first
	decisions []*agentv1.Decision
	tick      string              // the message of the tick that is queued or in the open turn
	dropped   bool                // the last tick was dropped as stale, which frees its key
	woken     *agentv1.AgentWoken // what woke the agent itself, until a completed turn was told
	wokenAt   time.Time
	facts     int64 // grows with every event of this agent
	readyAt   time.Time
	// failedTicks are the ticks in a row that no turn survived. What was not
	// told yet is told again, but not for ever (SPEC D4).
	failedTicks int32
	// answered are the commands whose results were answers of their calls.
	answered []string
	// transcript is where all its rounds are.
	transcript transcript
	briefs     []briefAt // oldest first
	// delegations are those of the agent as a parent, oldest first.
	delegations []*delegation
	firstItem   string                 // the first item that a child made
	ended       *agentv1.AgentDeleting // how its end began
	inherited   string                 // what a forked child started from
}

// turnState is a turn with its rounds.
type turnState struct {
	rec    *agentv1.Turn
	rounds []*agentv1.Round
	// settled is what the answer to a round said beside its results, for a
	// runner that asks again; nil where there was nothing.
	settled map[int32]*agentv1.RoundSettled
	told    *agentv1.AgentWoken // what had woken the agent when the turn began
}

// NewState returns the state of an empty log.
func NewState() *State {
	return &State{
		agents: map[key]*agentState{},
		ready:  map[string]*btree.BTreeG[readyAgent]{},

		acquired: map[acquireKey]acquiredTurn{},
		ids: btree.NewG(16, func(a, b key) bool {
			if a.Namespace != b.Namespace {
				return a.Namespace < b.Namespace
			}
			return a.ID < b.ID
		}),
	}
}

// Apply folds one event in.
func (s *State) Apply(ev *journal.Event) error {
	k := ref.Agent{Namespace: ev.Namespace, ID: ev.AgentID}
	a := s.agents[k]
	if p, ok := ev.Payload.(*agentv1.AgentSpawned); ok {
		if a != nil {
			return fmt.Errorf("agent: %s was spawned twice", ev.AgentID)
		}
		s.agents[k] = &agentState{namespace: ev.Namespace, rec: p.GetAgent(), facts: 1, inherited: p.GetInherited()}
		s.ids.ReplaceOrInsert(k)
		return nil
	}
	if a == nil {
		return fmt.Errorf("agent: %s for unknown agent %q", ev.Type, ev.AgentID)
	}
	s.unready(a)
	if err := a.apply(ev); err != nil {
		return err
	}
	if _, ok := ev.Payload.(*agentv1.AgentDeleted); ok {
		s.forget(a)
	}
	if p, ok := ev.Payload.(*agentv1.TurnStarted); ok && p.GetTurn().GetAcquireRequestId() != "" {
		s.acquired[acquireOf(a.namespace, p.GetTurn())] = acquiredTurn{k, p.GetTurn().GetTurnId()}
	}
	if p, ok := ev.Payload.(*agentv1.TurnInterrupted); ok && p.GetTurn().GetEndReason() == undelivered {
		s.unacquire(a, p.GetTurn())
	}
	if len(a.turns) > keptTurns {
		s.unacquire(a, a.turns[0].rec)
		a.turns = slices.Delete(a.turns, 0, 1)
	}
	a.facts++
	s.reready(a, ev.CreatedAt)
	return nil
}

// unacquire forgets which request got a turn, unless the request got another
// one since.
func (s *State) unacquire(a *agentState, t *agentv1.Turn) {
	if of := acquireOf(a.namespace, t); s.acquired[of].turnID == t.GetTurnId() {
		delete(s.acquired, of)
	}
}

// acquireOf names the request by the namespace of who asked, which is the
// agent's own unless a shared runner did.
func acquireOf(namespace string, t *agentv1.Turn) acquireKey {
	if t.GetAcquiredFrom() != "" {
		namespace = t.GetAcquiredFrom()
	}
	return ref.Request{Namespace: namespace, Principal: t.GetAcquiredBy(), RequestID: t.GetAcquireRequestId()}
}

func (a *agentState) apply(ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		m := p.GetMessage()
		a.lane.Arrive(m, ev.WalSeq)
		if m.GetTick() != nil {
			a.tick = m.GetMessageId()
		} else {
			a.edit(func(r *agentv1.Agent) { r.IdleTurns = 0 })
			a.failedTicks = 0
		}
	case *agentv1.MessageRequeued:
		a.lane.Requeue(p.GetMessage())
	case *agentv1.MessageDequeued:
		a.lane.Take(p.GetMessage())
	case *agentv1.MessageProcessed:
		a.finishMessage(p.GetMessage())
	case *agentv1.MessageInterjected:
		a.finishMessage(p.GetMessage())
		if a.turn != nil {
			t := proto.CloneOf(a.turn.rec)
			t.InterjectedMessageIds = append(t.InterjectedMessageIds, p.GetMessage().GetMessageId())
			a.turn.rec = t
		}
	case *agentv1.MessageAborted:
		a.finishMessage(p.GetMessage())
	case *agentv1.BriefWritten:
		a.briefs = append(a.briefs, briefAt{ev.WalSeq, p.GetBrief().GetKind(), p.GetBrief().GetWorkItemId()})
	case *agentv1.TaskAnswered:
		if len(a.answered) == keptAnswers {
			a.answered = slices.Delete(a.answered, 0, 1)
		}
		a.answered = append(a.answered, p.GetTaskId())
	case *agentv1.MessageDropped:
		a.finishMessage(p.GetMessage())
		a.dropped = p.GetMessage().GetTick() != nil
		if p.GetMessage().GetTick().GetReason() == agentv1.TickReason_TICK_REASON_WAKE_HINT && strings.HasPrefix(p.GetMessage().GetStateReason(), staleReason) {
			a.woken = nil // there is nothing left to tell; whatever came since keeps the tick
		}
	case *agentv1.MessageQuarantined:
		a.finishMessage(p.GetMessage())
		if p.GetMessage().GetTick() != nil {
			// A tick that no turn survives would come again for ever: it counts
			// as a turn that changed nothing (SPEC D4).
			a.edit(func(r *agentv1.Agent) { r.IdleTurns++ })
			a.failedTicks++
		}
	case *agentv1.AgentWoken:
		a.woken, a.wokenAt = p, ev.CreatedAt
	case *agentv1.AgentPaused:
		a.applyOrder(p.GetAgent())
	case *agentv1.AgentResumed:
		a.applyOrder(p.GetAgent())
	case *agentv1.AgentStopped:
		a.applyOrder(p.GetAgent())
	case *agentv1.AgentStarted:
		a.applyOrder(p.GetAgent())
	case *agentv1.AgentDeleting:
		a.applyOrder(p.GetAgent())
		a.ended = p
	case *agentv1.AgentDeleted:
		a.applyOrder(p.GetAgent())
	case *agentv1.DelegationOpened:
		a.delegations = append(slices.Clone(a.delegations), &delegation{p.GetDelegation(), p.GetChild(), p.GetInitialMessage(), p.GetInherited()})
	case *agentv1.DelegationUpdated:
		return a.applyDelegation(p.GetDelegation())
	case *agentv1.DelegationCompleted:
		return a.applyDelegation(p.GetDelegation())
	case *agentv1.FirstItemNoted:
		a.firstItem = p.GetWorkItemId()
	case *agentv1.DecisionRecorded:
		a.decisions = append(a.decisions, p.GetDecision())
		a.dropped = false
		if len(a.decisions) > keptDecisions {
			a.decisions = slices.Delete(a.decisions, 0, 1)
		}
	default:
		return a.applyTurn(ev)
	}
	return nil
}

func (a *agentState) applyTurn(ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *agentv1.TurnStarted:
		a.turn = &turnState{rec: p.GetTurn()}
		a.transcript.began(p.GetTurn().GetTurnId())
		// Its context shows what woke the agent; should it fail, that comes back.
		a.turn.told, a.woken = a.woken, nil
		a.edit(func(r *agentv1.Agent) {
			r.CurrentRunId, r.CurrentTurnId = p.GetTurn().GetRunId(), p.GetTurn().GetTurnId()
		})
	case *agentv1.RoundSubmitted:
		t, err := a.open(p.GetRound().GetTurnId())
		if err != nil {
			return err
		}
		a.transcript.submitted(ev.WalSeq, p.GetRound().GetWorkItemId())
		t.rounds = append(slices.Clone(t.rounds), p.GetRound())
		t.edit(func(r *agentv1.Turn) { r.Rounds = int32(len(t.rounds)) })
	case *agentv1.ToolResultRecorded:
		t, err := a.open(p.GetTurnId())
		if err != nil {
			return err
		}
		a.transcript.more(ev.WalSeq)
		t.round(p.GetRoundIndex(), func(r *agentv1.Round) { r.ToolResults = append(r.ToolResults, p.GetResult()) })
		t.edit(func(r *agentv1.Turn) {
			r.WorkItemId = p.GetWorkItemId()
			if p.GetMutated() {
				r.Mutations++
			}
		})
	case *agentv1.RoundSettled:
		t, err := a.open(p.GetTurnId())
		if err != nil {
			return err
		}
		a.transcript.more(ev.WalSeq)
		t.round(p.GetRoundIndex(), func(r *agentv1.Round) { r.Settled = true })
		if len(p.GetInterjections()) > 0 || len(p.GetNotices()) > 0 || p.GetPromotedWorkItemId() != "" {
			if t.settled == nil {
				t.settled = map[int32]*agentv1.RoundSettled{}
			}
			t.settled[p.GetRoundIndex()] = p
		}
	case *agentv1.TurnCompleted:
		a.end(p.GetTurn(), true, ev.WalSeq)
	case *agentv1.TurnFailed:
		a.end(p.GetTurn(), false, ev.WalSeq)
	case *agentv1.TurnInterrupted:
		a.end(p.GetTurn(), false, ev.WalSeq)
	case *agentv1.TurnAborted:
		a.end(p.GetTurn(), false, ev.WalSeq)
	default:
		return fmt.Errorf("agent: unknown event %T", ev.Payload)
	}
	return nil
}

// end closes the open turn. Three completed turns in a row without a call or a
// change leave the agent idle until new input (SPEC D4).
func (a *agentState) end(t *agentv1.Turn, completed bool, walSeq uint64) {
	if a.turn == nil || a.turn.rec.GetTurnId() != t.GetTurnId() {
		return
	}
	calls := 0
	for _, r := range a.turn.rounds {
		calls += len(r.GetToolCalls()) + len(r.GetLocalToolResults())
	}
	// What woke the agent counts as told by a completed turn only (SPEC P2, P7).
	if completed {
		a.failedTicks = 0
	} else if a.woken == nil {
		a.woken = a.turn.told
	}
	a.turn.rec = t
	a.turns = append(a.turns, a.turn)
	a.turn = nil
	a.transcript.ended(walSeq)
	a.slim()
	a.edit(func(r *agentv1.Agent) {
		r.CurrentRunId, r.CurrentTurnId, r.LastTurnId = "", "", t.GetTurnId()
		switch {
		case completed && calls == 0 && t.GetMutations() == 0:
			r.IdleTurns++
		case completed:
			r.IdleTurns = 0
		}
	})
}

func (a *agentState) edit(change func(*agentv1.Agent)) {
	r := proto.CloneOf(a.rec)
	change(r)
	a.rec = r
}

func (t *turnState) edit(change func(*agentv1.Turn)) {
	r := proto.CloneOf(t.rec)
	change(r)
	t.rec = r
}

// round replaces one round of a turn.
func (t *turnState) round(index int32, change func(*agentv1.Round)) {
	if int(index) >= len(t.rounds) {
		return
	}
	t.rounds = slices.Clone(t.rounds)
	r := proto.CloneOf(t.rounds[index])
	change(r)
	t.rounds[index] = r
}

func (a *agentState) open(turnID string) (*turnState, error) {
	if a.turn == nil || a.turn.rec.GetTurnId() != turnID {
		return nil, fmt.Errorf("agent: turn %q is not open", turnID)
	}
	return a.turn, nil
}

// find gives a turn of the agent, open or ended.
func (a *agentState) find(turnID string) *turnState {
	if a.turn != nil && a.turn.rec.GetTurnId() == turnID {
		return a.turn
	}
	for i := len(a.turns) - 1; i >= 0; i-- {
		if a.turns[i].rec.GetTurnId() == turnID {
			return a.turns[i]
		}
	}
	return nil
}

// agent finds an agent of a namespace.
func (s *State) agent(namespace, agentID string) (*agentState, error) {
	a := s.lookup(ref.Agent{Namespace: namespace, ID: agentID})
	if a == nil {
		return nil, fault.NotFound.Newf("agent %q does not exist; SpawnAgent makes one", agentID).With("agent_id", agentID)
	}
	return a, nil
}

// lookup returns an agent, or nil if it does not exist.
func (s *State) lookup(k key) *agentState { return s.agents[k] }

// finishMessage keeps a message's last record in the lane, and forgets the pending
// tick if the message was that.
func (a *agentState) finishMessage(m *agentv1.Message) {
	a.lane.Finish(m)
	if a.tick == m.GetMessageId() {
		a.tick = ""
	}
}

// takeable says whether a runner may start a turn of the agent now.
func (a *agentState) takeable() bool {
	return a.rec.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_ACTIVE &&
		a.rec.GetControl() == agentv1.Control_CONTROL_RUNNING &&
		a.turn == nil && a.lane.Head() != nil
}

// idle says that the agent could take a turn and has none to take.
func (a *agentState) idle() bool {
	return a.lives() && a.rec.GetControl() == agentv1.Control_CONTROL_RUNNING && a.turn == nil && a.lane.Head() == nil
}

func (s *State) unready(a *agentState) {
	if a.readyAt.IsZero() {
		return
	}
	s.ready[a.namespace].Delete(readyAgent{a.readyAt, a.rec.GetAgentId()})
}

func (s *State) reready(a *agentState, now time.Time) {
	if !a.takeable() {
		a.readyAt = time.Time{}
		return
	}
	if a.readyAt.IsZero() {
		a.readyAt = now
	}
	t := s.ready[a.namespace]
	if t == nil {
		t = btree.NewG(16, func(x, y readyAgent) bool {
			if !x.since.Equal(y.since) {
				return x.since.Before(y.since)
			}
			return x.id < y.id
		})
		s.ready[a.namespace] = t
	}
	t.ReplaceOrInsert(readyAgent{a.readyAt, a.rec.GetAgentId()})
}
