package state

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
)

// maxBriefBytes bounds a brief that is not a report.
const maxBriefBytes = 4000

// briefRef is the position of a brief in the journal, with what lists filter by.
type briefRef struct {
	WalSeq uint64
	Kind   agentv1.BriefKind
	ItemID string
}

// briefEvents returns the event of a brief. Callers derive briefID from what the brief is about, so
// that a repeated brief has the same id.
func (a *Agent) briefEvents(env journal.Env, kind agentv1.BriefKind, briefID, text, itemID,
	turnID string,
) []*journal.Event {
	b := &agentv1.Brief{
		BriefId: briefID, AgentId: a.Record.GetAgentId(), Kind: kind, Text: text,
		WorkItemId: itemID, TurnId: turnID, CreatedAt: timestamppb.New(env.Now),
	}
	return []*journal.Event{{
		Namespace: a.Namespace, AgentID: b.GetAgentId(), WorkItemID: itemID,
		Payload: &agentv1.BriefWritten{Brief: b},
	}}
}

func (a *Agent) briefID(about, kind string) string {
	return id.Derived("brf_", a.Namespace, a.Record.GetAgentId(), about, kind)
}

// AckBrief returns the event of the brief that tells the operator that turn t took message m. It
// returns none if m is no operator's prompt or an earlier turn had taken it.
func (a *Agent) AckBrief(env journal.Env, t *agentv1.Turn, m *agentv1.Message) []*journal.Event {
	if m.GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT || m.GetAttempts() > 1 {
		return nil
	}
	// A turn that was given back counts no attempt, but its brief was written.
	if before := a.FindTurn(a.Lane.Get(m.GetMessageId()).GetTurnId()); before != nil &&
		before.Record.GetMessageId() == m.GetMessageId() {
		return nil
	}
	return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_ACK, a.briefID(m.GetMessageId(), "ack"),
		"Took up: "+utf8cut.Shorten(m.GetText(), 200), m.GetWorkItemId(), t.GetTurnId())
}

// reportBrief returns the one result brief of a completed item: its report in full.
func (a *Agent) reportBrief(env journal.Env, p *workv1.ReportPromoted) []*journal.Event {
	return a.briefEvents(env, agentv1.BriefKind_BRIEF_KIND_RESULT, p.GetBriefId(), p.GetText(), p.GetWorkItem().
		GetWorkItemId(), p.GetTurnId())
}
