package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/packed"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

var _ journal.Paged = (*State)(nil)

var eventTypes = journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)

// life writes events into a state.
type life struct {
	t       *testing.T
	into    journal.State
	state   *State
	every   int // how many events are between two pages that are kept and read
	seq     uint64
	written map[string]bool
	pages   []keptPage

	evicted map[agentv1.Lifecycle]int // how often an agent was evicted after an event; nil: none can be
	queued  int                       // how often one of these had messages
}

// keptPage is a page that was taken while its agent lived, with its bytes as they were.
type keptPage struct {
	page proto.Message
	was  []byte
}

// newLife returns a life in which pages are checked after each event.
func newLife(t *testing.T, seen *journaltest.Seen) *life {
	into := journaltest.Checked(NewState, 1, seen)
	return &life{
		t: t, into: into, state: into.Paged, every: 1, written: map[string]bool{},
		evicted: map[agentv1.Lifecycle]int{},
	}
}

// on applies events of an agent.
func (l *life) on(namespace, agentID string, payloads ...proto.Message) {
	l.t.Helper()
	for _, p := range payloads {
		l.seq += 3 // others write between two events
		eventType, err := eventTypes.TypeOf(p)
		require.NoError(l.t, err)
		ev := &journal.Event{
			WalSeq: l.seq, Type: eventType, Namespace: namespace, AgentID: agentID, Payload: p,
			CreatedAt: time.Unix(int64(1000+l.seq), 5).UTC(),
		}
		l.written[ev.Type] = true
		require.NoError(l.t, l.into.Apply(ev), ev.Type)
		if l.evicted != nil {
			l.requireSameLoad(namespace, agentID)
		}
		if l.seq/3%uint64(l.every) == 0 {
			page := l.state.Page(snapshot.Owner{Namespace: namespace, ID: agentID})
			b, err := snapshot.EncodePage(page)
			require.NoError(l.t, err)
			l.pages = append(l.pages, keptPage{page, b})
			require.NoError(l.t, journaltest.RoundTrip(l.state, NewState))
		}
	}
}

// requirePagesUnchanged checks that pages stayed as they were while their agents went on.
func (l *life) requirePagesUnchanged() {
	l.t.Helper()
	for _, p := range l.pages {
		now, err := snapshot.EncodePage(p.page)
		require.NoError(l.t, err)
		require.Equal(l.t, p.was, now)
	}
}

func (l *life) spawn(namespace, agentID, inherited string) {
	l.t.Helper()
	l.on(namespace, agentID, &agentv1.AgentSpawned{
		Agent:     agentOf(agentID, agentv1.Lifecycle_LIFECYCLE_ACTIVE),
		Inherited: inherited,
	})
}

func (l *life) agent(namespace, agentID string) *Agent {
	return l.state.Lookup(plane.Key{Namespace: namespace, ID: agentID})
}

// agentOf returns an agent, which is private if it is the child.
func agentOf(agentID string, in agentv1.Lifecycle) *agentv1.Agent {
	visibility := agentv1.Visibility_VISIBILITY_PUBLIC
	if agentID == "child" {
		visibility = agentv1.Visibility_VISIBILITY_PRIVATE
	}
	return &agentv1.Agent{
		AgentId: agentID, Lifecycle: in, Control: agentv1.Control_CONTROL_RUNNING,
		Visibility: visibility,
	}
}

// message returns a message of a conversation unless kind says otherwise.
func message(id string, p agentv1.Priority, state agentv1.MessageState,
	change ...func(*agentv1.Message),
) *agentv1.Message {
	m := &agentv1.Message{
		MessageId: id, Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, Priority: p,
		State: state, Text: "words of " + id, CreatedAt: timestamppb.New(time.Unix(1000, 5)),
	}
	for _, c := range change {
		c(m)
	}
	return m
}

func about(itemID string) func(*agentv1.Message) {
	return func(m *agentv1.Message) { m.WorkItemId = itemID }
}

func tick(itemID string, revision int64) func(*agentv1.Message) {
	return func(m *agentv1.Message) {
		m.Kind, m.Tick = agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK,
			&agentv1.Tick{Reason: agentv1.TickReason_TICK_REASON_WAKE_HINT, WorkItemId: itemID, Revision: revision}
	}
}

const (
	first      = agentv1.Priority_PRIORITY_INTERJECT
	next       = agentv1.Priority_PRIORITY_NEXT
	normal     = agentv1.Priority_PRIORITY_NORMAL
	background = agentv1.Priority_PRIORITY_BACKGROUND

	queued    = agentv1.MessageState_MESSAGE_STATE_QUEUED
	dequeued  = agentv1.MessageState_MESSAGE_STATE_DEQUEUED
	processed = agentv1.MessageState_MESSAGE_STATE_PROCESSED
)

func turnOf(id, messageID, itemID, request string) *agentv1.Turn {
	return &agentv1.Turn{
		TurnId: id, RunId: "run_" + id, MessageId: messageID, BoundWorkItemId: itemID,
		Binding:   agentv1.Binding_BINDING_MESSAGE,
		StartedAt: timestamppb.New(time.Unix(7, 0)), AcquireRequestId: request, AcquiredBy: "runner",
		AcquiredFrom: "shared",
	}
}

func ended(t *agentv1.Turn, in agentv1.TurnState) *agentv1.Turn {
	t = proto.CloneOf(t)
	t.State, t.EndedAt = in, timestamppb.New(time.Unix(9, 0))
	return t
}

// call returns the events of a round with one call.
func call(turnID string, index int32, tool, itemID string) []proto.Message {
	args := &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(float64(index))}}
	done := &agentv1.ToolResult{ToolName: tool, CallId: "local", Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS}
	return []proto.Message{
		&agentv1.RoundSubmitted{Round: &agentv1.Round{
			TurnId: turnID, Index: index, Text: "text", WorkItemId: itemID, ToolCalls: []*agentv1.ToolCall{
				{Name: tool, Arguments: args},
			}, LocalToolResults: []*agentv1.ToolResult{done},
		}},
		&agentv1.ToolResultRecorded{TurnId: turnID, RoundIndex: index, Result: done, Mutated: true, WorkItemId: itemID},
	}
}

// failed is a turn that fails after a round, with a wake and a message that was given to it.
func (l *life) failed() {
	l.on("acme", "keeper",
		&agentv1.MessageQueued{Message: message("m1", normal, queued)},
		&agentv1.MessageQueued{Message: message("m2", next, queued, about("wi_1"))},
		&agentv1.MessageQueued{Message: message("m3", first, queued)},
		&agentv1.MessageQueued{Message: message("m4", background, queued)},
		&agentv1.AgentWoken{Source: "trigger", SourceId: "trg_1"},
		&agentv1.MessageDequeued{Message: message("m1", normal, dequeued)},
		&agentv1.TurnStarted{Turn: turnOf("t1", "m1", "wi_1", "r1")},
		&agentv1.LocalCallsStarted{TurnId: "t1", Calls: []*agentv1.ToolCall{{Name: "a"}}},
	)
	l.on("acme", "keeper", call("t1", 0, "CreateWorkItem", "wi_1")...)
	l.on("acme", "keeper",
		&agentv1.RoundSettled{TurnId: "t1", Notices: []string{"notice"}},
		&agentv1.MessageInterjected{Message: message("m3", first, agentv1.MessageState_MESSAGE_STATE_INTERJECTED)},
	)
	l.on("acme", "keeper", call("t1", 1, "RunCommand", "wi_2")...)
	l.on("acme", "keeper",
		&agentv1.RoundSettled{TurnId: "t1", RoundIndex: 1, Notices: []string{"notice"}},
		&agentv1.LocalCallsStarted{TurnId: "t1", RoundIndex: 2, Calls: []*agentv1.ToolCall{{Name: "b"}}},
		&agentv1.LocalCallsStarted{TurnId: "t1", RoundIndex: 2, Calls: []*agentv1.ToolCall{{Name: "c"}}},
		&agentv1.MessageRequeued{Message: message("m3", first, queued)},
		&agentv1.MessageRequeued{Message: message("m1", normal, queued)},
		&agentv1.TurnFailed{
			Turn: ended(l.agent("acme", "keeper").OpenTurn.Record, agentv1.TurnState_TURN_STATE_FAILED),
		},
	)
}

// summarized is a turn that hands in a summary and completes.
func (l *life) summarized() {
	l.on("acme", "keeper",
		&agentv1.MessageDequeued{Message: message("m2", next, dequeued, about("wi_1"))},
		&agentv1.TurnStarted{Turn: turnOf("t2", "m2", "wi_1", "r2")},
		&agentv1.RoundSubmitted{Round: &agentv1.Round{
			TurnId: "t2", Text: "for the operator",
			ConversationSummary: &agentv1.ConversationSummary{Text: "s", ThroughTurnId: "t1"},
		}},
		&agentv1.RoundSettled{TurnId: "t2", PromotedWorkItemId: "wi_1"},
		&agentv1.BriefWritten{Brief: &agentv1.Brief{Kind: agentv1.BriefKind_BRIEF_KIND_RESULT, WorkItemId: "wi_1"}},
		&agentv1.BriefWritten{Brief: &agentv1.Brief{Kind: agentv1.BriefKind_BRIEF_KIND_ACK}},
		&agentv1.BriefWritten{Brief: &agentv1.Brief{Kind: agentv1.BriefKind_BRIEF_KIND_FAILURE, WorkItemId: "wi_2"}},
		&agentv1.MessageProcessed{Message: message("m2", next, processed, about("wi_1"))},
		&agentv1.TurnCompleted{Turn: ended(turnOf("t2", "m2", "wi_1", "r2"), agentv1.TurnState_TURN_STATE_COMPLETED)},
	)
}

// idle is a turn on a tick that makes no progress, and a tick that is quarantined.
func (l *life) idle() {
	l.on("acme", "keeper",
		&agentv1.DecisionRecorded{
			Decision:  &agentv1.Decision{Action: agentv1.DecisionAction_DECISION_ACTION_TICK},
			MessageId: "m5",
		},
		&agentv1.MessageQueued{Message: message("m5", normal, queued, tick("wi_3", 4))},
		&agentv1.MessageDequeued{Message: message("m5", normal, dequeued, tick("wi_3", 4))},
		&agentv1.TurnStarted{Turn: turnOf("t3", "m5", "", "")},
		&agentv1.MessageProcessed{Message: message("m5", normal, processed, tick("wi_3", 4))},
		&agentv1.TurnCompleted{Turn: ended(turnOf("t3", "m5", "", ""), agentv1.TurnState_TURN_STATE_COMPLETED)},
		&agentv1.MessageQueued{Message: message("m6", normal, queued, tick("wi_3", 4))},
		&agentv1.MessageQuarantined{Message: message("m6", normal, agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
			tick("wi_3", 4))},
		&agentv1.TaskAnswered{TaskId: "tsk_1"},
		&agentv1.MessageQueued{Message: message("m7", normal, queued, tick("", 0))},
		&agentv1.MessageDropped{Message: message("m7", normal, agentv1.MessageState_MESSAGE_STATE_DROPPED,
			tick("", 0))},
		&agentv1.AgentWoken{Source: "trigger", SourceId: "trg_2", WaitIds: []string{"wt_1"}},
	)
}

// parted is the delegation of a child, and the child's end.
func (l *life) parted() {
	open := func(id string, state agentv1.DelegationState) *agentv1.Delegation {
		return &agentv1.Delegation{DelegationId: id, ParentAgentId: "keeper", ChildAgentId: "child", State: state}
	}
	for _, id := range []string{"dlg_1", "dlg_2"} {
		l.on("acme", "keeper",
			&agentv1.DelegationOpened{
				Delegation:     open(id, agentv1.DelegationState_DELEGATION_STATE_OPEN),
				Child:          agentOf("child", agentv1.Lifecycle_LIFECYCLE_ACTIVE),
				InitialMessage: "do", Inherited: "view", MaxAuthority: agentv1.Authority_AUTHORITY_EXTERNAL_EVIDENCE,
			},
			&agentv1.DelegationUpdated{Delegation: open(id, agentv1.DelegationState_DELEGATION_STATE_OPEN)})
	}
	l.on("acme", "keeper", &agentv1.DelegationCompleted{
		Delegation: open("dlg_1", agentv1.DelegationState_DELEGATION_STATE_COMPLETED),
	})
	l.spawn("acme", "child", "view")
	l.on("acme", "child",
		&agentv1.MessageQueued{Message: message("c1", normal, queued)},
		&agentv1.FirstItemNoted{WorkItemId: "wi_c"},
		&agentv1.MessageDequeued{Message: message("c1", normal, dequeued)},
		&agentv1.TurnStarted{Turn: turnOf("tc", "c1", "", "rc")},
		&agentv1.MessageAborted{Message: message("c1", normal, agentv1.MessageState_MESSAGE_STATE_ABORTED)},
		&agentv1.TurnAborted{Turn: ended(turnOf("tc", "c1", "", "rc"), agentv1.TurnState_TURN_STATE_ABORTED)},
		&agentv1.AgentPaused{Agent: agentOf("child", agentv1.Lifecycle_LIFECYCLE_ACTIVE)},
		&agentv1.AgentResumed{Agent: agentOf("child", agentv1.Lifecycle_LIFECYCLE_ACTIVE)},
		&agentv1.AgentStopped{Agent: agentOf("child", agentv1.Lifecycle_LIFECYCLE_ACTIVE)},
		&agentv1.AgentStarted{Agent: agentOf("child", agentv1.Lifecycle_LIFECYCLE_ACTIVE)},
		&agentv1.AgentDeleting{
			Agent:   agentOf("child", agentv1.Lifecycle_LIFECYCLE_DELETING),
			Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED,
		},
		&agentv1.AgentDeleted{Agent: agentOf("child", agentv1.Lifecycle_LIFECYCLE_DELETED)},
	)
}

// long is a life of more turns and decisions than are kept.
func (l *life) long() {
	l.spawn("acme", "old", "")
	for i := range KeptDecisions + packed.GroupSize {
		l.on("acme", "old", &agentv1.DecisionRecorded{Decision: &agentv1.Decision{Reason: fmt.Sprint(i)}})
	}
	for i := range KeptTurns + packed.GroupSize {
		id, turn := fmt.Sprint("mo", i), turnOf(fmt.Sprint("to", i), fmt.Sprint("mo", i), "", fmt.Sprint("ro", i))
		l.on("acme", "old",
			&agentv1.MessageQueued{Message: message(id, normal, queued)},
			&agentv1.MessageDequeued{Message: message(id, normal, dequeued)},
			&agentv1.TurnStarted{Turn: turn},
			&agentv1.MessageProcessed{Message: message(id, normal, processed)},
			&agentv1.TurnCompleted{Turn: ended(turn, agentv1.TurnState_TURN_STATE_COMPLETED)},
		)
	}
}

// Pages have all that a state has, and an event touches the agents that it changes, whatever it is.
func TestTheStateIsInItsPages(t *testing.T) {
	seen := &journaltest.Seen{}
	l := newLife(t, seen)
	l.spawn("acme", "keeper", "")
	l.spawn("other", "keeper", "")
	l.failed()
	// The request that got t1 gets a turn of an agent elsewhere, as when a runner of all namespaces repeats it.
	found := RequestOf("acme", turnOf("t1", "m1", "wi_1", "r1"))
	require.Equal(t, AcquiredTurn{plane.Key{Namespace: "acme", ID: "keeper"}, "t1"}, l.state.AcquiredTurns[found])
	again := turnOf("t9", "m9", "", "r1")
	l.on("other", "keeper",
		&agentv1.MessageQueued{Message: message("m9", normal, queued)},
		&agentv1.MessageDequeued{Message: message("m9", normal, dequeued)},
		&agentv1.TurnStarted{Turn: again})
	require.Equal(t, AcquiredTurn{plane.Key{Namespace: "other", ID: "keeper"}, "t9"}, l.state.AcquiredTurns[found])
	again = ended(again, agentv1.TurnState_TURN_STATE_INTERRUPTED)
	again.EndReason = agentv1.TurnEndReason_TURN_END_REASON_UNDELIVERED
	l.on("other", "keeper", &agentv1.MessageRequeued{Message: message("m9", normal, queued)}, &agentv1.TurnInterrupted{
		Turn: again,
	})
	require.NotContains(t, l.state.AcquiredTurns, found)
	l.summarized()
	l.idle()
	l.parted()
	l.long()
	l.requirePagesUnchanged()
	require.Equal(t, []string{"quartet.agent.v1.LanePage.finished"}, seen.Missing(&agentv1.AgentPage{}),
		"what pages of format 2 have")
	for _, eventType := range eventTypes.Types() {
		require.True(t, l.written[eventType], "%s is in no life", eventType)
	}
	require.Len(t, l.evicted, 2, "active and deleted agents were evicted")
	require.Positive(t, l.queued)
	l.on("other", "keeper", &agentv1.AgentDeleted{Agent: agentOf("keeper", agentv1.Lifecycle_LIFECYCLE_DELETED)})
	erased, err := l.into.(*journaltest.CheckedState[*State]).EraseDeleted()
	require.NoError(t, err)
	require.Contains(t, erased, snapshot.Owner{Namespace: "other", ID: "keeper"})
	require.Nil(t, l.agent("other", "keeper"))
	for _, found := range l.state.AcquiredTurns {
		require.NotContains(t, erased, snapshot.Owner(found.Agent))
	}
}

// Pages have what is left of a life that is longer than what is kept of it.
func TestTheStateIsInItsPagesAfterLong(t *testing.T) {
	l := &life{t: t, state: NewState(), every: 99, written: map[string]bool{}}
	l.into = l.state // a page has hundreds of records, and is not compared after each event
	l.spawn("acme", "keeper", "")
	for i := range keptUtterances + 10 {
		id, itemID := fmt.Sprint("m", i), fmt.Sprint("wi_", i%7)
		turn := turnOf(fmt.Sprint("t", i), id, itemID, fmt.Sprint("r", i%100))
		l.on("acme", "keeper",
			&agentv1.MessageQueued{Message: message(id, normal, queued, about(itemID))},
			&agentv1.MessageDequeued{Message: message(id, normal, dequeued, about(itemID))},
			&agentv1.TurnStarted{Turn: turn},
			&agentv1.RoundSubmitted{Round: &agentv1.Round{
				TurnId: turn.GetTurnId(), Text: "text", WorkItemId: itemID,
				ConversationSummary: &agentv1.ConversationSummary{Text: "s"},
			}},
			&agentv1.RoundSettled{TurnId: turn.GetTurnId()},
			&agentv1.BriefWritten{Brief: &agentv1.Brief{Kind: agentv1.BriefKind_BRIEF_KIND_RESULT, WorkItemId: itemID}},
			&agentv1.DecisionRecorded{Decision: &agentv1.Decision{WorkItemId: itemID}},
			&agentv1.TaskAnswered{TaskId: id},
			&agentv1.MessageProcessed{Message: message(id, normal, processed, about(itemID))},
			&agentv1.TurnCompleted{Turn: ended(turn, agentv1.TurnState_TURN_STATE_COMPLETED)},
		)
	}
	require.NoError(t, journaltest.RoundTrip(l.state, NewState))
	l.requirePagesUnchanged()
	for what, kept := range map[int]int{
		KeptTurns:     l.agent("acme", "keeper").EndedTurns.Len(),
		KeptDecisions: l.agent("acme", "keeper").Decisions.Len(),
	} {
		require.GreaterOrEqual(t, kept, what)
		require.Less(t, kept, what+packed.GroupSize)
	}
	require.Len(t, l.state.AcquiredTurns, l.agent("acme", "keeper").EndedTurns.Len())
}

// A page that no state wrote is an error that says what is wrong with it.
func TestADamagedPageIsAnError(t *testing.T) {
	l := newLife(t, nil)
	l.spawn("acme", "keeper", "")
	l.spawn("other", "keeper", "")
	l.failed()
	l.summarized()
	l.parted()
	o := snapshot.Owner{Namespace: "acme", ID: "keeper"}
	for want, damage := range map[string]func(*agentv1.AgentPage){
		`has the record of ""`:      func(p *agentv1.AgentPage) { p.Agent = nil },
		`has the record of "other"`: func(p *agentv1.AgentPage) { p.Agent.AgentId = "other" },
		"and 0 positions of them":   func(p *agentv1.AgentPage) { p.Lane.QueuedAt = nil },
		"is there twice, or no id": func(p *agentv1.AgentPage) {
			p.Lane.Messages[1] = p.GetLane().
				GetMessages()[0]
		},
		"message 99 of 3 is queued": func(p *agentv1.AgentPage) { p.Lane.Queued[0] = 99 },
		"message 99 of 3 is finished": func(p *agentv1.AgentPage) {
			p.Lane.Ended, p.Lane.Finished = nil,
				[]uint32{99}
		},
		"messages of the lane: 3 open records": func(p *agentv1.AgentPage) { p.Lane.Ended.OpenPlaces = nil },
		"the open turn: it has no record":      func(p *agentv1.AgentPage) { p.OpenTurn = &agentv1.TurnPage{} },
		"ended turn 1: it has no record":       func(p *agentv1.AgentPage) { p.EndedTurns[1].Turn = nil },
		"turn t2 is found by a request": func(p *agentv1.AgentPage) {
			p.EndedTurns = append(p.EndedTurns[:1], p.EndedTurns[1], p.EndedTurns[1])
		},
		"delegation 0 has no record": func(p *agentv1.AgentPage) { p.Delegations[0].Delegation = nil },
		"are damaged at byte": func(p *agentv1.AgentPage) {
			p.Transcript.Steps = append(p.Transcript.Steps, 0x80)
		},
		"and the ends of 1": func(p *agentv1.AgentPage) {
			p.Transcript.TurnEndSteps = p.Transcript.TurnEndSteps[:1]
		},
		`turn "t1" has -1 rounds`: func(p *agentv1.AgentPage) { p.Transcript.TurnRounds[0] = -1 },
		"the turns have 2 rounds": func(p *agentv1.AgentPage) { p.Transcript.TurnRounds[1] = 0 },
		`of 3 was bound to item "wi_2"`: func(p *agentv1.AgentPage) {
			p.Transcript.Items["wi_2"].NumberSteps[0] = 3
		},
		"there are 3 briefs, kinds of 0":       func(p *agentv1.AgentPage) { p.Briefs.Kinds = nil },
		"brief 1: it is about item 9 of 2":     func(p *agentv1.AgentPage) { p.Briefs.Items[1] = 9 },
		"utterance 0: it is about item 9 of 1": func(p *agentv1.AgentPage) { p.Conversation.Items[0] = 9 },
		"the conversation has 1 utterances": func(p *agentv1.AgentPage) {
			p.Conversation.WalSeqSteps = p.Conversation.WalSeqSteps[:1]
		},
	} {
		page, ok := proto.Clone(l.state.Page(o)).(*agentv1.AgentPage)
		require.True(t, ok)
		damage(page)
		require.ErrorContains(t, NewState().AddPage(o, page), want)
	}
	s := NewState()
	require.NoError(t, s.AddPage(o, proto.Clone(l.state.Page(o))))
	require.ErrorContains(t, s.AddPage(o, proto.Clone(l.state.Page(o))), "has two pages")
	require.ErrorContains(t, s.AddPage(o, &agentv1.Agent{}), "is no *agentv1.Agent")
}

// Whatever a page has, reading it does not panic, and neither does writing what was read.
func FuzzAPage(f *testing.F) {
	o := snapshot.Owner{Namespace: "acme", ID: "keeper"}
	for _, p := range []*agentv1.AgentPage{
		{Agent: &agentv1.Agent{AgentId: "keeper"}},
		{
			Agent: &agentv1.Agent{AgentId: "keeper"}, Lane: &agentv1.LanePage{
				Messages: []*agentv1.Message{{MessageId: "m"}}, QueuedAt: []uint64{3}, Queued: []uint32{0},
			},
			Transcript: &agentv1.TranscriptPage{
				Steps: []byte{7}, TurnIds: []string{"t"}, TurnRounds: []int64{1},
				TurnEndSteps: []int64{0},
			},
			Conversation: &agentv1.ConversationPage{
				WalSeqSteps: []int64{3}, Items: []uint32{1},
				ItemIds: []string{"wi"}, Utterances: []*agentv1.UtterancePage{{Round: -1}},
			},
			Briefs: &agentv1.BriefsPage{
				WalSeqSteps: []int64{3}, Items: []uint32{1}, ItemIds: []string{"wi"},
				Kinds: []agentv1.BriefKind{1},
			},
		},
	} {
		b, err := snapshot.EncodePage(p)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		page := &agentv1.AgentPage{}
		if proto.Unmarshal(b, page) != nil {
			return
		}
		s := NewState()
		if s.AddPage(o, page) != nil {
			return
		}
		_, err := snapshot.EncodePage(s.Page(o))
		require.NoError(t, err)
	})
}
