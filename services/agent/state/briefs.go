package state

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/text"
)

// maxBriefBytes bounds a brief but for a report, which is whole.
const maxBriefBytes = 4000

// briefAt says where a brief is in the journal, and what lists ask for.
type BriefRef struct {
	WalSeq uint64
	Kind   agentv1.BriefKind
	ItemID string
}

// brief makes the event of a brief. Its id follows from what it is about, so
// that the same thing is told once.
func (a *Agent) briefEvents(env journal.Env, kind agentv1.BriefKind, briefID, text, itemID, turnID string) []*journal.Event {
	b := &agentv1.Brief{
		BriefId: briefID, AgentId: a.Record.GetAgentId(), Kind: kind, Text: text,
		WorkItemId: itemID, TurnId: turnID, CreatedAt: timestamppb.New(env.Now),
	}
	return []*journal.Event{{Namespace: a.Namespace, AgentID: b.GetAgentId(), WorkItemID: itemID, Payload: &agentv1.BriefWritten{Brief: b}}}
}

func (a *Agent) briefID(about, kind string) string {
	return id.Derived("brf_", a.Namespace, a.Record.GetAgentId(), about, kind)
}

// acknowledged tells the operator that a message was taken up, the first time
// it is.
func (a *Agent) AckBrief(env journal.Env, t *agentv1.Turn, m *agentv1.Message) []*journal.Event {
	if m.GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT || m.GetAttempts() > 1 {
		return nil
	}
	// A turn that was given back counts no attempt, and was told of all the same.
	if before := a.FindTurn(a.Lane.Get(m.GetMessageId()).GetTurnId()); before != nil && before.Record.GetMessageId() == m.GetMessageId() {
		return nil
	}
	return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_ACK, a.briefID(m.GetMessageId(), "ack"),
		"Took up: "+text.Shorten(m.GetText(), 200), m.GetWorkItemId(), t.GetTurnId())
}

// reported is the one result brief of a completed item: its report, whole. The
// work plane gives an item one report for ever.
func (a *Agent) reportBrief(env journal.Env, p *workv1.ReportPromoted) []*journal.Event {
	return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_RESULT, p.GetBriefId(), p.GetText(), p.GetWorkItem().GetWorkItemId(), p.GetTurnId())
}
