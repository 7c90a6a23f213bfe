package board

import (
	"fmt"
	"slices"
	"strings"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/utf8cut"
	"quartet/services/board/model"
)

const (
	// tokenBytes is the estimated number of bytes of a token.
	tokenBytes = 4
	// maxLinesOfKind bounds the lines of a section that are collected. No budget has room
	// for more.
	maxLinesOfKind = 2000
)

// summaryMaterial is what a summary is made from.
type summaryMaterial struct {
	Worker, Pool string          // of the reader; empty: none
	Run          *model.Run      // the run that calls, or nil; the summary has only what it may read
	Hidden       map[string]bool // ids of the steps that Run may not see; set by Add
	boards       []*boardv1.Board
	mine         []summaryLine    // steps that Worker holds
	running      []summaryLine    // steps that others hold
	blocked      []summaryLine    // blocked and failed steps
	ready        []summaryLine    // ready in other pools
	own          []summaryLine    // ready in Pool
	Recent       []*journal.Event // the newest changes, the oldest first
}

// summaryLine is a line of a section, about a board or one of its steps.
type summaryLine struct{ board, text string }

// Add adds a board with its steps. Steps that m.Run may not see are left out and recorded in
// m.Hidden.
func (m *summaryMaterial) Add(b *model.Board) {
	m.boards = append(m.boards, b.Overview())
	for _, s := range b.Order {
		if s == nil {
			continue
		}
		if m.Run != nil && !m.Run.Sees(s) {
			if m.Hidden == nil {
				m.Hidden = map[string]bool{}
			}
			m.Hidden[s.ID()] = true
			continue
		}
		switch st := s.Record.GetStatus(); {
		case model.Held(st) && m.Worker != "" && s.Record.GetClaimedByAgentId() == m.Worker:
			addLine(&m.mine, b, s)
		case model.Held(st):
			addLine(&m.running, b, s)
		case st == model.StepBlocked || st == model.StepFailed:
			addLine(&m.blocked, b, s)
		case st == model.StepReady && m.Pool != "" && s.Record.GetWorkerPoolId() == m.Pool:
			addLine(&m.own, b, s)
		case st == model.StepReady:
			addLine(&m.ready, b, s)
		}
	}
}

// addLine appends the line of a step, unless there are maxLinesOfKind.
func addLine(to *[]summaryLine, b *model.Board, s *model.Step) {
	if len(*to) >= maxLinesOfKind {
		return
	}
	rec := s.Record
	text := fmt.Sprintf("- %s/%s [%s] %s", b.ID, rec.GetStepId(), model.StepStatusName(rec.GetStatus()),
		utf8cut.Line(rec.GetTitle(), 120))
	if rec.GetClaimedByAgentId() != "" {
		text += " (" + rec.GetClaimedByAgentId() + ")"
	}
	if rec.GetReason() != "" {
		text += ": " + utf8cut.Line(rec.GetReason(), 160)
	}
	*to = append(*to, summaryLine{b.ID, text})
}

// Render returns the summary in at most budget bytes (S2-473). It writes the sections in the
// order of their importance: boards, steps that the reader holds, blocked and failed ones,
// steps that others hold, ready ones, and the newest changes. A section that does not fit
// says how many lines are left out, and truncated is true. Without boards the text is empty.
func (m *summaryMaterial) Render(budget int) (text string, truncated bool) {
	if len(m.boards) == 0 {
		return "", false
	}
	out := &sheet{budget: budget}
	var boards []summaryLine
	for _, b := range m.boards {
		c := b.GetCounts()
		note := ""
		if b.GetDiagnostics().GetStalled() {
			note = ", stalled"
		}
		if b.GetDiagnostics().GetCompleteable() {
			note = ", completeable"
		}
		boards = append(boards, summaryLine{b.GetBoardId(), fmt.Sprintf("- %s [%s%s] %s: %d ready, %d held, %d "+
			"blocked, %d failed, %d pending, %d completed",
			b.GetBoardId(), model.BoardStatusName(b.GetStatus()), note, utf8cut.Line(b.GetTitle(), 120), c.GetReady(),
			c.GetClaimed()+c.GetRunning(),
			c.GetBlocked(), c.GetFailed(), c.GetPending(), c.GetCompleted())})
	}
	// The list of boards gets at most a fifth of the budget, so that a hundred boards do
	// not displace the blocked steps.
	out.section("Boards", boards, max(budget/5, len(boards[0].text)+40))
	out.section("Held by you", m.mine, budget)
	out.section("Blocked or failed", m.blocked, budget)
	out.section("Held by workers", m.running, budget)
	out.section("Ready for your pool", m.own, budget)
	out.section("Ready", m.ready, budget)
	var recent []summaryLine
	for _, ev := range slices.Backward(m.Recent) {
		what := strings.TrimPrefix(ev.Type, "task_")
		if ev.StepID != "" {
			what += " " + ev.StepID
		}
		recent = append(recent, summaryLine{ev.TaskID, "- " + ev.CreatedAt.Format("15:04:05") + " " + ev.TaskID + ": " +
			what})
	}
	out.section("Recent changes, newest first", recent, budget)
	return out.text.String(), out.truncated
}

// sheet is a summary that is being written.
type sheet struct {
	text      strings.Builder
	budget    int  // bytes of text
	truncated bool // a section was cut
}

// moreLine is the last line of a section that was cut.
const moreLine = "- … %d more\n"

// section writes a title and as many lines as fit into limit bytes and into the budget, and how many
// more there are.
func (p *sheet) section(title string, lines []summaryLine, limit int) {
	if len(lines) == 0 {
		return
	}
	head := "## " + title + "\n"
	room := min(p.budget-p.text.Len(), limit) - len(head)
	n := 0
	for n < len(lines) {
		need := len(lines[n].text) + 1
		if n+1 < len(lines) {
			need += len(moreLine) + 6
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
	left := fmt.Sprintf(moreLine, len(lines)-n)
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
