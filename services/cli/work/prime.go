package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/pkg/unread"
	"quartet/pkg/utf8cut"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

const (
	// PrimeTokens limits what prime prints, in tokens of four bytes (SPEC C5.9).
	PrimeTokens   = 1_000
	bytesPerToken = 4
	// primeItems is how many open items are read: more lines do not fit.
	primeItems = 100

	// Limits of the parts, in bytes. Those of the item in focus together leave room for the
	// other items.
	primeAgent     = 128
	primeObjective = 560
	primePath      = 160
	primeBlocker   = 200
	primeTodo      = 110
	primeTodos     = 600
	primeWait      = 160
	primeWaits     = 300
	primeSaid      = 130
	primeMessages  = 2
	primeOther     = 130
	primeReason    = 60
)

// Primer is what prime prints. Its JSON is the output of -o json.
type Primer struct {
	AgentID string `json:"agent_id"`
	// Text is the text for a model, which ends in a line feed.
	Text string `json:"text"`
	// Tokens is the size of the text in tokens of four bytes, rounded up.
	Tokens int `json:"tokens"`
	// OpenItems counts the open items, the one in focus included; ShownItems those in the text.
	OpenItems  int `json:"open_items"`
	ShownItems int `json:"shown_items"`
}

// PrimeCommand returns `quartet prime`.
func PrimeCommand(s *session.Session) *cobra.Command {
	var limit time.Duration
	var hook string
	cmd := &cobra.Command{
		Use: "prime AGENT", Short: "Print an agent's open work for a model's context, at most 1000 tokens",
		Args: input.Exactly("AGENT"),
		Long: `Print what a model needs to go on: the item in focus with its plan, todos and waits,
the newest messages that no turn has taken, the other open items in a line each as far
as they fit, and which tools come next. The text has at most 1000 tokens of four bytes, whatever the agent holds.

A coding agent's hook runs it at the start of a session and after a compaction. It
changes nothing. If the server cannot be reached the exit code is 5, and 3 if there
is no such agent; then nothing is written to stdout. With --hook the exit code is 0 then
too, because a hook that fails disturbs a session that can do without it.`,
		Example: "  quartet prime my-project\n  quartet prime my-project -o json\n" +
			"  quartet prime my-project --hook claude",
	}
	cmd.Flags().DurationVar(&limit, "timeout", 5*time.Second, "How long to wait for the server")
	cmd.Flags().StringVar(&hook, "hook", "", "Write what the hook of a coding agent takes: "+strings.Join(Hooks, ", "))
	input.Choices(cmd, "hook", Hooks...)
	cmd.RunE = forHook(&hook, s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), limit)
		defer cancel()
		work := workv1.NewWorkServiceClient(conn)
		queue, err := work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: args[0]})
		if err != nil {
			return err
		}
		open, err := work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
			AgentId: args[0], Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN, PageSize: primeItems,
			OmitPlanPreviews: true,
		})
		if err != nil {
			return err
		}
		said, err := unread.Read(ctx, agentv1.NewAgentServiceClient(conn), args[0], primeMessages)
		if err != nil {
			return err
		}
		primer := Prime(args[0], queue, open.GetWorkItems(), said)
		var document any
		switch {
		case s.JSON():
			document = primer
		case hook == "cursor":
			document = map[string]string{"additional_context": primer.Text}
		default:
			p := s.Printer(cmd)
			p.Printf("%s", primer.Text)
			return p.Err()
		}
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(document)
	}))
	return cmd
}

// Hooks are the coding agents whose hooks run prime. Claude Code and Codex add the text on stdout to the context,
// Cursor that of a JSON document.
var Hooks = []string{"claude", "codex", "cursor"}

// forHook returns a RunE that checks --hook and, with it, ends without an error where run has one: it says on stderr
// what is missing.
func forHook(hook *string, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if *hook != "" && !slices.Contains(Hooks, *hook) {
			return exit.UsageError(fmt.Sprintf("--hook %s is unknown; use one of %s", *hook, strings.Join(Hooks, ", ")))
		}
		err := run(cmd, args)
		switch {
		case err == nil || *hook == "":
			return err
		case errors.Is(err, fault.NotFound):
			cmd.PrintErrf("quartet: agent %s does not exist yet, so there is no open work to show; quartet mcp "+
				"--create, which quartet setup enters, creates it when it starts\n", terminal.Printable(args[0]))
		default:
			exit.Report(cmd, err)
		}
		return nil
	}
}

// Prime returns the text about an agent's queue. open are open items in any order, of which some
// may be missing. The items of the queue come first, since it has the triggered and runnable ones. said has the
// messages that no turn has taken, of which the newest are shown.
func Prime(agentID string, queue *workv1.GetWorkQueueResponse, open []*workv1.WorkItem, said unread.Messages) Primer {
	out := Primer{AgentID: agentID, OpenItems: int(queue.GetCounts().GetOpen())}
	current := queue.GetCurrent()
	head := fmt.Sprintf("Quartet, the durable memory of agent %s.\n", lineOf(agentID, primeAgent))
	if current == nil {
		head += "\nNo item is in focus.\n"
	} else {
		head += "\n" + inFocus(current)
		out.ShownItems++
	}
	head += messages(said)
	next := whatIsNext(current, out.OpenItems)

	const limit = PrimeTokens * bytesPerToken
	var lines strings.Builder
	others := otherItems(queue, open)
	total := out.OpenItems
	if current != nil {
		total--
	}
	total = max(total, len(others))
	title := fmt.Sprintf("\nOther open items (%d):\n", total)
	more := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("- and %d more: ListWorkItems with filter open\n", n)
	}
	shown := 0
	for _, it := range others {
		line := otherItem(it)
		if len(head)+len(title)+lines.Len()+len(line)+len(more(total))+len(next) > limit {
			break
		}
		lines.WriteString(line)
		shown++
	}
	out.Text = head
	if total > 0 {
		out.Text += title + lines.String() + more(total-shown)
	}
	out.Text += next
	out.ShownItems += shown
	out.Tokens = (len(out.Text) + bytesPerToken - 1) / bytesPerToken
	return out
}

// inFocus describes the item in focus.
func inFocus(it *workv1.WorkItem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "In focus: %s (plan_status %s)\nObjective: %s\n", it.GetWorkItemId(),
		pbjson.EnumText(it.GetPlanStatus()), lineOf(it.GetObjective(), primeObjective))
	plan := it.GetPlanArtifact()
	fmt.Fprintf(&b, "Plan: HomeRead work-items/%s/plan.md", it.GetWorkItemId())
	switch {
	case plan.GetProblem() != "":
		fmt.Fprintf(&b, " (%s)", lineOf(plan.GetProblem(), primeReason))
	case plan.GetBytes() == 0:
		b.WriteString(" (empty)")
	default:
		fmt.Fprintf(&b, " (%s, on the server %s)", terminal.Count(plan.GetBytes(), "byte", "bytes"),
			lineOf(plan.GetPath(), primePath))
	}
	b.WriteString("\n")
	if it.GetBlockedBy() != "" {
		fmt.Fprintf(&b, "Blocked by: %s\n", lineOf(it.GetBlockedBy(), primeBlocker))
	}
	if w := it.GetResumed().GetWait(); w != nil {
		fmt.Fprintf(&b, "Resumed: its wait is over: %s\n", lineOf(waitText(w), primeWait))
	}
	var todos, done []string
	for _, t := range it.GetTodoList() {
		switch t.GetState() {
		case workv1.TodoState_TODO_STATE_COMPLETED:
			done = append(done, "- done: "+lineOf(t.GetText(), primeTodo)+"\n")
		case workv1.TodoState_TODO_STATE_IN_PROGRESS: // first, so that it is never cut
			todos = append([]string{"- in progress: " + lineOf(t.GetText(), primeTodo) + "\n"}, todos...)
		default:
			todos = append(todos, "- "+lineOf(t.GetText(), primeTodo)+"\n")
		}
	}
	if all := slices.Concat(todos, done); len(all) > 0 { // the done ones last: they are cut first
		fmt.Fprintf(&b, "Todos (%d of %d done):\n%s", len(done), len(all),
			fitting(all, primeTodos, "todos: GetWorkItem"))
	}
	var waits []string
	for _, w := range it.GetWaits() {
		waits = append(waits, "- "+lineOf(waitText(w), primeWait)+"\n")
	}
	if len(waits) > 0 {
		fmt.Fprintf(&b, "Waits:\n%s", fitting(waits, primeWaits, "waits: GetWorkItem"))
	}
	return b.String()
}

// waitText says what an item waits for or is interested in.
func waitText(w *workv1.AttachedWait) string {
	text := pbjson.EnumText(w.GetKind())
	if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_INTENT {
		text = "interest in " + text
	}
	if w.GetResource() != "" {
		text += " " + w.GetResource()
	}
	if unseen := w.GetTriggerCount() - w.GetConsumedCount(); unseen > 0 {
		text += ", triggered " + terminal.Count(unseen, "time", "times") + " unseen"
	}
	return text + output.Detail(w.GetReason())
}

// messages shows what was said to the agent and no turn has taken.
func messages(said unread.Messages) string {
	if said.Total == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nMessages that no turn has taken, and may be done already (%d", said.Total)
	if said.Total > len(said.Newest) {
		fmt.Fprintf(&b, ", the newest %d", len(said.Newest))
	}
	b.WriteString("):\n")
	for _, m := range said.Newest {
		b.WriteString(unread.Line(m, primeSaid))
	}
	return b.String()
}

// fitting returns the first of lines, as many as have at most most bytes together, and a line that says
// how many are left out. what names these and the tool that shows them.
func fitting(lines []string, most int, what string) string {
	var b strings.Builder
	for i, line := range lines {
		if b.Len()+len(line) > most {
			fmt.Fprintf(&b, "- and %d more %s\n", len(lines)-i, what)
			break
		}
		b.WriteString(line)
	}
	return b.String()
}

// otherItems returns all open items but the one in focus, each once: first those in queue, class by class, then the
// others in open.
func otherItems(queue *workv1.GetWorkQueueResponse, open []*workv1.WorkItem) []*workv1.WorkItem {
	known := map[string]bool{queue.GetCurrent().GetWorkItemId(): true}
	var out []*workv1.WorkItem
	for _, items := range [][]*workv1.WorkItem{
		queue.GetTriggeredBlocked(), queue.GetQueuedRunnable(),
		queue.GetWaitingForOperator(), queue.GetBlocked(), open,
	} {
		for _, it := range items {
			if !known[it.GetWorkItemId()] {
				known[it.GetWorkItemId()] = true
				out = append(out, it)
			}
		}
	}
	return out
}

// otherItem describes an item in one line.
func otherItem(it *workv1.WorkItem) string {
	state := pbjson.EnumText(it.GetSchedulingState())
	if it.GetHasTriggeredWaits() {
		state += ", triggered"
	}
	if it.GetResumed() != nil {
		state += ", resumed"
	}
	if it.GetBlockedBy() != "" {
		state += ": " + lineOf(it.GetBlockedBy(), primeReason)
	}
	return fmt.Sprintf("- %s [%s] %s\n", it.GetWorkItemId(), state, lineOf(it.GetObjective(), primeOther))
}

// whatIsNext returns a sentence that tells the agent which tools to call next. open is the number of open items.
func whatIsNext(current *workv1.WorkItem, open int) string {
	switch {
	case current != nil && current.GetBlockedBy() != "":
		return "\nNext: look at what blocks it. Clear the blocker with UpdateWorkItem blocked_by null, or " +
			"PickWorkItem another one.\n"
	case current != nil:
		return "\nNext: read its plan with HomeRead and go on with the first open todo. UpdateWorkItem with the " +
			"whole todo_list, done ones included, after each step, CompleteWorkItem with a report when it is done, " +
			"WaitFor when it cannot go on.\n"
	case open > 0:
		return "\nNext: choose an item, read its plan with HomeRead work-items/<work_item_id>/plan.md, and " +
			"PickWorkItem. First those that are resumed or triggered: what they waited for has happened.\n"
	}
	return "\nNext: nothing is open. CreateWorkItem once for each independent objective, then PickWorkItem.\n"
}

// lineOf returns text as one printable line of at most most bytes.
func lineOf(text string, most int) string {
	const cut = "…"
	text = terminal.Printable(strings.Join(strings.Fields(text), " "))
	if len(text) <= most {
		return text
	}
	return utf8cut.Bytes(text, most-len(cut)) + cut
}
