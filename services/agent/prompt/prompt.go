// Package prompt renders what a model is shown of its work: layered, within a
// budget, the same for every reader (SPEC C1).
//
// It is pure: records in, text out. The current objective, the plan's
// descriptor and the todos that are not done are in every text, whatever the
// budget, and so are the calls that were running when a run was lost. Other sections
// follow by priority, and each says whether it is full, compact, truncated or omitted.
package prompt

import (
	"fmt"
	"strings"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Budgets in estimated tokens.
const (
	DefaultBudget = 4096
	MinBudget     = 512
	MaxBudget     = 200_000
	// bytesPerToken is the estimate that every provider's tokenizer stays near
	// to for English and code, on the safe side.
	bytesPerToken = 4
)

// Shares of what is left that a section may take, so that a long message or
// trace does not cost the model its view of the queue.
const (
	inheritedShare = 50
	messageShare   = 60
	previewShare   = 40
	notesShare     = 15
	traceShare     = 25
	boardsShare    = 60
)

// Input is what the planes said, at one revision.
type Input struct {
	Message *agentv1.Message // what the turn is about; nil outside of one
	Woken   *agentv1.AgentWoken
	Own     []*waitingv1.Wait // of the agent itself, triggered
	Queue   *workv1.GetWorkQueueResponse
	Trace   []*agentv1.Round // bound to the current item, newest first
	Notes   []string         // on it, oldest first; see Digest
	Tasks   []*taskv1.Task   // running
	Boards  Boards
	// Inherited is what a forked child started from; see Inherit.
	Inherited string
	// Lost are rounds that no runner was answered with, oldest first.
	Lost []Lost
}

// Tokens estimates what a text takes.
func Tokens(text string) int { return (len(text) + bytesPerToken - 1) / bytesPerToken }

// Baseline is the smallest budget that shows what must be shown.
func Baseline(in Input) int {
	return Tokens(guidance + heading("Current work item", outcome(agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT), 0) + core(in.Queue.GetCurrent()) + lostLeast(in.Lost))
}

// Needed is Baseline and room for the message, up to what a whole context has by
// default: a model must know why it is asked to act.
func Needed(in Input) int {
	message := min(Tokens(in.Message.GetText())*9/8+64, DefaultBudget)
	inherited := Tokens(in.Inherited)
	return Baseline(in) + message*100/messageShare + inherited*100/inheritedShare
}

const guidance = "The objective names the work, the plan interprets it and wins conflicts, todos are progress.\n"

type outcome agentv1.SectionOutcome

// Outcomes in short.
const (
	full      = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_FULL)
	compact   = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT)
	truncated = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED)
	omitted   = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED)
)

func (o outcome) String() string {
	return strings.ToLower(strings.TrimPrefix(agentv1.SectionOutcome(o).String(), "SECTION_OUTCOME_"))
}

// form is one way to show a section.
type form struct {
	outcome outcome
	text    string
}

// page collects sections and keeps the books.
type page struct {
	left     int // bytes
	sections []*agentv1.ContextSection
}

// Render makes the projection. BASELINE_OVER_BUDGET says that what must be
// shown does not fit; asking again with the same budget cannot help.
func Render(in Input, budget int) ([]*agentv1.ContextSection, error) {
	if need := Baseline(in); need > budget {
		return nil, fault.BaselineOverBudget.Newf("the objective, the plan's descriptor and the open todos take %d tokens, the budget is %d; give a larger one, or shorten them", need, budget).
			With("needed", fmt.Sprint(need)).With("budget", fmt.Sprint(budget))
	}
	p := &page{left: budget * bytesPerToken}
	q, it := in.Queue, in.Queue.GetCurrent()
	p.put("guidance", 0, form{full, guidance})
	// The parts that must be shown take their budget first.
	least := heading("Current work item", compact, 0) + core(it)
	p.left -= len(least)
	p.share("cut_off", len(in.Lost), 100, lostWithin(in.Lost, p.left/4)...)
	if in.Inherited != "" { // first, since it is the same in every turn
		p.share("inherited", 1, inheritedShare, inheritedForms(in.Inherited, p.left*inheritedShare/100)...)
	}
	p.share("message", one(in.Message != nil), messageShare, messageForms(in, p.left*messageShare/100)...)
	p.left += len(least)
	p.put("current_item", one(it != nil), currentForms(it, p.left*previewShare/100)...)
	if it != nil {
		p.share("notes", len(in.Notes), notesShare, lineForms("Notes on it, from what was done", in.Notes, p.left*notesShare/100, keepLast)...)
		trace := traceOf(in.Trace)
		p.share("trace", len(trace), traceShare, lineForms("What was said and done last, newest first", trace, p.left*traceShare/100, keepFirst)...)
	}
	n := q.GetCounts()
	p.candidates("triggered", "Triggered, to review", q.GetTriggeredBlocked(), n.GetTriggeredBlocked())
	p.share("boards", one(in.Boards != (Boards{})), boardsShare, in.Boards.forms(p.left*boardsShare/100)...)
	p.candidates("queued", "Queued and runnable", q.GetQueuedRunnable(), n.GetQueuedRunnable())
	p.candidates("waiting_for_operator", "Waiting for an operator", q.GetWaitingForOperator(), n.GetWaitingForOperator())
	p.candidates("blocked", "Blocked", q.GetBlocked(), n.GetBlocked())
	if completed := reported(q.GetCompletedRecent()); len(completed) > 0 {
		p.candidates("completed", "Completed recently", completed, n.GetCompleted())
	}
	tasks := taskLines(in.Tasks)
	p.share("tasks", len(tasks), 100, lineForms("Tasks that run", tasks, p.left, keepFirst)...)
	return p.sections, nil
}

// Text is the sections in one piece.
func Text(sections []*agentv1.ContextSection) string {
	var b strings.Builder
	for _, s := range sections {
		b.WriteString(s.GetText())
	}
	return b.String()
}

// put shows the largest form that fits, or says that nothing did.
func (p *page) put(name string, records int, forms ...form) { p.share(name, records, 100, forms...) }

// share is put within a share of what is left.
func (p *page) share(name string, records, percent int, forms ...form) {
	room := p.left * percent / 100
	chosen := form{outcome: omitted}
	for _, f := range forms {
		if len(f.text) <= room {
			chosen = f
			break
		}
	}
	if chosen.outcome == omitted && records == 0 {
		return // there is nothing that could be missed
	}
	p.left -= len(chosen.text)
	p.sections = append(p.sections, &agentv1.ContextSection{
		Name: name, Outcome: agentv1.SectionOutcome(chosen.outcome), Tokens: int32(Tokens(chosen.text)), Records: int32(records), Text: chosen.text,
	})
}

func (p *page) candidates(name, title string, items []*workv1.WorkItem, total int32) {
	all := max(int(total), len(items))
	if all > 0 {
		p.put(name, all, candidateForms(title, items, all, p.left)...)
	}
}

// one record, or none.
func one(there bool) int {
	if there {
		return 1
	}
	return 0
}

// reported leaves out completed items without a report: nothing is synthesised.
func reported(items []*workv1.WorkItem) []*workv1.WorkItem {
	var out []*workv1.WorkItem
	for _, it := range items {
		if it.GetResultSummary() != "" {
			out = append(out, it)
		}
	}
	return out
}
