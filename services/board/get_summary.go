package board

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
)

const (
	minBudget = 100
	maxBudget = 100_000
	// tokenBytes is how many bytes a token is taken to have.
	tokenBytes    = 4
	recentChanges = 10
	// mostOfKind bounds what is gathered of one kind; no budget has room for more.
	mostOfKind = 2000
)

// GetSummary renders a session's boards for a prompt (S2-464 to S2-473, SPEC B14).
func (s *Service) GetSummary(ctx context.Context, req *boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error) {
	runID, err := s.reader(ctx, "agent.task_list", req.GetSessionId())
	if err := fault.First(err, optionalName("worker_id", req.GetWorkerId()), optionalName("worker_pool_id", req.GetWorkerPoolId())); err != nil {
		return nil, err
	}
	budget := int(req.GetTokenBudget())
	switch {
	case budget == 0:
		budget = s.cfg.TokenBudget
	case budget < minBudget || budget > maxBudget:
		return nil, fault.LimitExceeded.Newf("token_budget is %d; it must be %d to %d", budget, minBudget, maxBudget).WithField("token_budget", "must be 100 to 100000")
	}
	k := sessionKey(ctx, req.GetSessionId())
	if err := s.reconcileSession(ctx, k); err != nil {
		return nil, err
	}
	var recent []uint64
	m, err := journalView(ctx, s, k, func(st *State) (material, error) {
		m := material{worker: req.GetWorkerId(), pool: req.GetWorkerPoolId()}
		recent = nil
		var only *board
		if runID != "" {
			r := st.runs[key{k.namespace, runID}]
			if r == nil || r.board.key.session != k.id {
				return m, runOver(runID)
			}
			m.run = r
			only, m.worker, m.pool = r.board, rpc.ActorFrom(ctx).AgentID, r.rec.GetWorkerPoolId()
		}
		se := st.sessions[k]
		if se == nil {
			return m, nil
		}
		for _, b := range se.order {
			if b.damaged == nil && (only == nil || b == only) {
				m.add(b)
				recent = append(recent, b.positions(max(0, b.lines-recentChanges), recentChanges)...)
			}
		}
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(recent)
	recent = recent[max(0, len(recent)-recentChanges):]
	if m.recent, err = journal.ReadBack(ctx, s.engine.For(k.namespace, k.id), recent); err != nil {
		return nil, err
	}
	m.recent = slices.DeleteFunc(m.recent, func(ev *journal.Event) bool { return m.hidden[ev.StepID] })
	text, truncated := m.render(budget * tokenBytes)
	return &boardv1.GetSummaryResponse{Text: text, Tokens: int32(((len(text) + tokenBytes - 1) / tokenBytes) & (1<<31 - 1)), Truncated: truncated}, nil
}

// material is what a summary is made of.
type material struct {
	worker, pool string
	run          *run // whose credential asks, or nil; it is told of what it sees
	hidden       map[string]bool
	boards       []*boardv1.Board
	mine         []line
	running      []line
	blocked      []line
	ready        []line
	own          []line // ready in the worker's own pool
	recent       []*journal.Event
}

type line struct{ board, text string }

func (m *material) add(b *board) {
	m.boards = append(m.boards, b.summarized())
	for _, s := range b.order {
		if s == nil {
			continue
		}
		if m.run != nil && !m.run.sees(s) {
			if m.hidden == nil {
				m.hidden = map[string]bool{}
			}
			m.hidden[s.id()] = true
			continue
		}
		switch st := s.rec.GetStatus(); {
		case held(st) && m.worker != "" && s.rec.GetClaimedByAgentId() == m.worker:
			keep(&m.mine, b, s)
		case held(st):
			keep(&m.running, b, s)
		case st == stepBlocked || st == stepFailed:
			keep(&m.blocked, b, s)
		case st == stepReady && m.pool != "" && s.rec.GetWorkerPoolId() == m.pool:
			keep(&m.own, b, s)
		case st == stepReady:
			keep(&m.ready, b, s)
		}
	}
}

func keep(to *[]line, b *board, s *step) {
	if len(*to) >= mostOfKind {
		return
	}
	rec := s.rec
	text := fmt.Sprintf("- %s/%s [%s] %s", b.id, rec.GetStepId(), word(rec.GetStatus()), oneLine(rec.GetTitle(), 120))
	if rec.GetClaimedByAgentId() != "" {
		text += " (" + rec.GetClaimedByAgentId() + ")"
	}
	if rec.GetReason() != "" {
		text += ": " + oneLine(rec.GetReason(), 160)
	}
	*to = append(*to, line{b.id, text})
}

// oneLine is text without line breaks, of at most n characters.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// render writes the sections by what they are worth until the budget is used:
// blocked, held by the reader, held by others, then ready ones and the newest
// changes (S2-473). What is left out is counted.
func (m *material) render(budget int) (text string, truncated bool) {
	if len(m.boards) == 0 {
		return "", false
	}
	out := &sheet{budget: budget}
	var boards []line
	for _, b := range m.boards {
		c := b.GetCounts()
		note := ""
		if b.GetDiagnostics().GetStalled() {
			note = ", stalled"
		}
		if b.GetDiagnostics().GetCompleteable() {
			note = ", completeable"
		}
		boards = append(boards, line{b.GetBoardId(), fmt.Sprintf("- %s [%s%s] %s: %d ready, %d held, %d blocked, %d failed, %d pending, %d completed",
			b.GetBoardId(), taskWord(b.GetStatus()), note, oneLine(b.GetTitle(), 120), c.GetReady(), c.GetClaimed()+c.GetRunning(),
			c.GetBlocked(), c.GetFailed(), c.GetPending(), c.GetCompleted())})
	}
	// A fifth of the budget at most for the list of boards: a hundred boards
	// must not leave the blocked steps of one unsaid.
	out.section("Task boards", boards, max(budget/5, len(boards[0].text)+40))
	out.section("Held by you", m.mine, budget)
	out.section("Blocked or failed", m.blocked, budget)
	out.section("Held by workers", m.running, budget)
	out.section("Ready for your pool", m.own, budget)
	out.section("Ready", m.ready, budget)
	var recent []line
	for _, ev := range slices.Backward(m.recent) {
		what := strings.TrimPrefix(ev.Type, "task_")
		if ev.StepID != "" {
			what += " " + ev.StepID
		}
		recent = append(recent, line{ev.TaskID, "- " + ev.CreatedAt.Format("15:04:05") + " " + ev.TaskID + ": " + what})
	}
	out.section("Recent changes, newest first", recent, budget)
	return out.text.String(), out.truncated
}

type sheet struct {
	text      strings.Builder
	budget    int
	truncated bool
}

// more is what a section that is cut ends with.
const more = "- … %d more\n"

// section writes as many lines as fit, of at most most bytes.
func (p *sheet) section(title string, lines []line, most int) {
	if len(lines) == 0 {
		return
	}
	head := "## " + title + "\n"
	room := min(p.budget-p.text.Len(), most) - len(head)
	n := 0
	for n < len(lines) {
		need := len(lines[n].text) + 1
		if n+1 < len(lines) {
			need += len(more) + 6
		}
		if need > room {
			break
		}
		room -= len(lines[n].text) + 1
		n++
	}
	if n < len(lines) {
		p.truncated = true
	}
	left := fmt.Sprintf(more, len(lines)-n)
	if n == 0 {
		if len(head)+len(left) <= p.budget-p.text.Len() {
			p.text.WriteString(head + left)
		}
		return
	}
	p.text.WriteString(head)
	for _, l := range lines[:n] {
		p.text.WriteString(l.text + "\n")
	}
	if n < len(lines) {
		p.text.WriteString(left)
	}
}
