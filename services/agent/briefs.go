package agent

import (
	"context"
	"quartet/services/agent/ref"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// maxBriefBytes bounds a brief but for a report, which is whole.
const maxBriefBytes = 4000

// briefAt says where a brief is in the journal, and what lists ask for.
type briefAt struct {
	walSeq uint64
	kind   agentv1.BriefKind
	itemID string
}

// brief makes the event of a brief. Its id follows from what it is about, so
// that the same thing is told once.
func (a *agentState) brief(env journal.Env, kind agentv1.BriefKind, briefID, text, itemID, turnID string) []*journal.Event {
	b := &agentv1.Brief{
		BriefId: briefID, AgentId: a.rec.GetAgentId(), Kind: kind, Text: text,
		WorkItemId: itemID, TurnId: turnID, CreatedAt: timestamppb.New(env.Now),
	}
	return []*journal.Event{{Namespace: a.namespace, AgentID: b.GetAgentId(), WorkItemID: itemID, Payload: &agentv1.BriefWritten{Brief: b}}}
}

func (a *agentState) briefID(about, kind string) string {
	return id.Derived("brf_", a.namespace, a.rec.GetAgentId(), about, kind)
}

// acknowledged tells the operator that a message was taken up, the first time
// it is.
func (a *agentState) acknowledged(env journal.Env, t *agentv1.Turn, m *agentv1.Message) []*journal.Event {
	if m.GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT || m.GetAttempts() > 1 {
		return nil
	}
	// A turn that was given back counts no attempt, and was told of all the same.
	if before := a.find(a.lane.Get(m.GetMessageId()).GetTurnId()); before != nil && before.rec.GetMessageId() == m.GetMessageId() {
		return nil
	}
	return a.brief(env, agentv1.BriefKind_BRIEF_KIND_ACK, a.briefID(m.GetMessageId(), "ack"),
		"Took up: "+shortened(m.GetText(), 200), m.GetWorkItemId(), t.GetTurnId())
}

// concluded tells the operator how a turn ended: that its message was put aside
// for good, or what was said last where no report has said it (SPEC W7: what was
// promoted is delivered once).
func (a *agentState) concluded(env journal.Env, t *agentv1.Turn, events []*journal.Event) []*journal.Event {
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.MessageQuarantined); ok && p.GetMessage().GetMessageId() == t.GetMessageId() {
			return a.brief(env, agentv1.BriefKind_BRIEF_KIND_FAILURE, a.briefID(t.GetMessageId(), "failure"),
				"Put aside: "+p.GetMessage().GetStateReason(), p.GetMessage().GetWorkItemId(), t.GetTurnId())
		}
	}
	n := len(a.turn.rounds)
	if n == 0 || t.GetState() != agentv1.TurnState_TURN_STATE_COMPLETED || a.promotedIn(events) ||
		a.lane.Get(t.GetMessageId()).GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT {
		return nil
	}
	text := a.turn.rounds[n-1].GetText()
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return a.brief(env, agentv1.BriefKind_BRIEF_KIND_RESULT, a.briefID(t.GetTurnId(), "final"), shortened(text, maxBriefBytes), "", t.GetTurnId())
}

// promotedIn says whether a round of the open turn became a report.
func (a *agentState) promotedIn(events []*journal.Event) bool {
	for _, settled := range a.turn.settled {
		if settled.GetPromotedWorkItemId() != "" {
			return true
		}
	}
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.RoundSettled); ok && p.GetPromotedWorkItemId() != "" {
			return true
		}
	}
	return false
}

// reported is the one result brief of a completed item: its report, whole. The
// work plane gives an item one report for ever.
func (a *agentState) reported(env journal.Env, p *workv1.ReportPromoted) []*journal.Event {
	return a.brief(env, agentv1.BriefKind_BRIEF_KIND_RESULT, p.GetBriefId(), p.GetText(), p.GetWorkItem().GetWorkItemId(), p.GetTurnId())
}

// shortened cuts a text at n bytes, between characters.
func shortened(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// ListBriefs reads an agent's briefs, newest first (SPEC C3). Those to come are
// brief_written events of WatchEvents.
func (s *Service) ListBriefs(ctx context.Context, req *agentv1.ListBriefsRequest) (*agentv1.ListBriefsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if _, ok := agentv1.BriefKind_name[int32(req.GetKind())]; !ok {
		return nil, fault.Invalid("kind", strconv.Itoa(int(req.GetKind())), "must be a kind of brief")
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	before, err := numberBefore("briefs", req.GetPageToken())
	if err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	type found struct {
		numbers []int
		at      []uint64
		more    bool
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (found, error) {
		a, err := st.agent(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		var f found
		for n := len(a.briefs) - 1; n >= 0; n-- {
			b := a.briefs[n]
			if before >= 0 && n >= before || req.GetWorkItemId() != "" && b.itemID != req.GetWorkItemId() || req.GetKind() != 0 && b.kind != req.GetKind() {
				continue
			}
			if len(f.at) == size {
				f.more = true
				break
			}
			f.numbers, f.at = append(f.numbers, n), append(f.at, b.walSeq)
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListBriefsResponse{}
	bytes := 0
	for i := range f.at {
		events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), f.at[i:i+1])
		if err != nil {
			return nil, err
		}
		p, ok := events[0].Payload.(*agentv1.BriefWritten)
		if !ok {
			return nil, fault.InternalError.Newf("wal_seq %d is no brief", f.at[i])
		}
		if bytes += proto.Size(p.GetBrief()); i > 0 && bytes > page.MaxBytes {
			f.more, f.numbers = true, f.numbers[:i]
			break
		}
		resp.Briefs = append(resp.Briefs, p.GetBrief())
	}
	if f.more {
		resp.NextPageToken = page.Token("briefs", strconv.Itoa(f.numbers[len(f.numbers)-1]))
	}
	return resp, nil
}

// numberBefore reads the page token of a list that counts down; -1 for all.
func numberBefore(list, token string) (int, error) {
	at, err := page.Position(list, token, 1)
	if err != nil || at == nil {
		return -1, err
	}
	n, err := strconv.Atoi(at[0])
	if err != nil || n < 0 {
		return 0, fault.CursorInvalid.Newf("page_token %q was not made by this list", token)
	}
	return n, nil
}
