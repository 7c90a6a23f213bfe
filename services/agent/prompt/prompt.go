// Package prompt renders the context of a turn from records, within a budget (SPEC C1). It is
// pure: the same records and budget give the same text.
//
// The current objective, the plan's descriptor and the todos that are not done are required: each
// context contains them, and the calls that were running when a run was lost. Other sections
// follow by priority, and each states whether it is full, compact, truncated or omitted.
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
	// bytesPerToken is a conservative estimate for English text and code with the
	// tokenizers of all providers.
	bytesPerToken = 4
)

// The shares of the remaining budget that a section may take, in percent, so that a long message
// or trace does not displace the queue.
const (
	inheritedShare = 50
	messageShare   = 60
	previewShare   = 40
	notesShare     = 15
	traceShare     = 25
	boardsShare    = 60
)

// Input holds the records of all planes as of one revision.
type Input struct {
	Message *agentv1.Message // what the turn is about; nil outside of one
	Woken   *agentv1.AgentWoken
	Own     []*waitingv1.Wait // of the agent itself, triggered
	Queue   *workv1.GetWorkQueueResponse
	Trace   []*agentv1.Round // bound to the current item, newest first
	Notes   []string         // on it, oldest first; see Digest
	Tasks   []*taskv1.Task   // running
	Boards  Boards
	// Inherited is what a forked child inherited; see Inherit.
	Inherited string
	// Lost are the rounds whose results no runner received, oldest first.
	Lost []Lost
}

// Tokens returns the estimated number of tokens of a text.
func Tokens(text string) int { return (len(text) + bytesPerToken - 1) / bytesPerToken }

// Baseline returns the smallest budget for the required parts.
func Baseline(in Input) int {
	return Tokens(guidance + heading("Current work item", outcome(agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT), 0) + core(in.Queue.GetCurrent()) + lostLeast(in.Lost))
}

// Needed returns Baseline plus room for the message, of which at most DefaultBudget tokens
// count, and for the inherited view.
func Needed(in Input) int {
	message := min(Tokens(in.Message.GetText())*9/8+64, DefaultBudget)
	inherited := Tokens(in.Inherited)
	return Baseline(in) + message*100/messageShare + inherited*100/inheritedShare
}

const guidance = "The objective names the work, the plan interprets it and wins conflicts, todos are progress.\n"

type outcome agentv1.SectionOutcome

// Short names of the outcomes.
const (
	full      = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_FULL)
	compact   = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_COMPACT)
	truncated = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_TRUNCATED)
	omitted   = outcome(agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED)
)

func (o outcome) String() string {
	return strings.ToLower(strings.TrimPrefix(agentv1.SectionOutcome(o).String(), "SECTION_OUTCOME_"))
}

// form is one rendering of a section.
type form struct {
	outcome outcome
	text    string
}

// page collects sections and their sizes.
type page struct {
	left     int // bytes
	sections []*agentv1.ContextSection
}

// Render returns the sections of a context. It returns BASELINE_OVER_BUDGET if the required parts
// do not fit into the budget.
func Render(in Input, budget int) ([]*agentv1.ContextSection, error) {
	if need := Baseline(in); need > budget {
		return nil, fault.BaselineOverBudget.Newf("the objective, the plan's descriptor and the open todos take %d tokens, the budget is %d; give a larger one, or shorten them", need, budget).
			With("needed", fmt.Sprint(need)).With("budget", fmt.Sprint(budget))
	}
	p := &page{left: budget * bytesPerToken}
	q, it := in.Queue, in.Queue.GetCurrent()
	p.put("guidance", 0, form{full, guidance})
	// The required parts take their budget first.
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

// Text returns the sections as one text.
func Text(sections []*agentv1.ContextSection) string {
	var b strings.Builder
	for _, s := range sections {
		b.WriteString(s.GetText())
	}
	return b.String()
}

// put adds a section in the largest form that fits, and otherwise as omitted.
func (p *page) put(name string, records int, forms ...form) { p.share(name, records, 100, forms...) }

// share is put within a share of the remaining budget.
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

// one returns 1 if there is a record, and 0 otherwise.
func one(there bool) int {
	if there {
		return 1
	}
	return 0
}

// reported returns the completed items that have a report.
func reported(items []*workv1.WorkItem) []*workv1.WorkItem {
	var out []*workv1.WorkItem
	for _, it := range items {
		if it.GetResultSummary() != "" {
			out = append(out, it)
		}
	}
	return out
}
