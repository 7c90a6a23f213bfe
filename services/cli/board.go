package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "quartet/pkg/pb/quartet/event/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func (ss *session) workBoard() *cobra.Command {
	var watch bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "board AGENT", Short: "Show the queue as a picture, class by class", Args: exactly("AGENT"),
		Long: `Show what is in focus and each class of candidates in the order in which the
scheduler takes them: objective and id, what is being done and waited for, plan
status and age. With --watch the picture follows what happens, until ^C or
--timeout; -o json then writes each queue as a line.`,
		Example: "  quartet work board keeper\n  quartet work board keeper --watch",
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Draw again whenever something happens")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --watch: end after this time; 0: never")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if watch {
			ctx, cancel := timed(cmd, limit)
			defer cancel()
			return ss.watchBoard(ctx, cmd, conn, args[0])
		}
		q, err := queueOf(cmd.Context(), conn, args[0])
		if err != nil {
			return err
		}
		return ss.show(cmd, q, func(p *printer) { board(p, args[0], q, ss.now()) })
	})
	return cmd
}

func queueOf(ctx context.Context, conn *grpc.ClientConn, agentID string) (*workv1.GetWorkQueueResponse, error) {
	return workv1.NewWorkServiceClient(conn).GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: agentID, OmitPlans: true})
}

// watchBoard draws, and draws again for each event of the agent's work that
// brought another revision. The stream is open before the first picture, so
// that nothing falls between the two.
func (ss *session) watchBoard(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn, agentID string) error {
	p := newPrinter(cmd.OutOrStdout())
	drawn := int64(-1)
	draw := func() error {
		q, err := queueOf(ctx, conn, agentID)
		if err != nil || q.GetRevision() == drawn {
			return err
		}
		if ss.output == formJSON {
			p.jsonLine(q)
		} else {
			p.wipe(drawn < 0)
			board(p, agentID, q, ss.now())
		}
		drawn = q.GetRevision()
		return p.err
	}
	// An agent that is not there is said at once, and not waited for.
	if err := draw(); err != nil {
		return err
	}
	f := &follower{cmd: cmd, conn: conn, req: &eventv1.WatchEventsRequest{AgentId: agentID, Planes: []string{"work"}}, back: draw}
	f.take = func(*eventv1.WatchEventsResponse) error {
		err := draw()
		if err != nil && passing(err) && p.err == nil {
			return nil // the stream will notice that the server is gone
		}
		return err
	}
	return f.run(ctx)
}

// class is one part of the picture.
type class struct {
	title, colour string
	items         []*workv1.WorkItem
	total         int32
}

func classes(q *workv1.GetWorkQueueResponse) []class {
	n := q.GetCounts()
	focus := class{title: "in focus", colour: green}
	if q.GetCurrent() != nil {
		focus.items, focus.total = []*workv1.WorkItem{q.GetCurrent()}, 1
	}
	return []class{
		focus,
		{"triggered, to review", violet, q.GetTriggeredBlocked(), n.GetTriggeredBlocked()},
		{"queued, runnable", cyan, q.GetQueuedRunnable(), n.GetQueuedRunnable()},
		{"waiting for an operator", yellow, q.GetWaitingForOperator(), n.GetWaitingForOperator()},
		{"blocked", red, q.GetBlocked(), n.GetBlocked()},
		{"completed recently", dim, q.GetCompletedRecent(), n.GetCompleted()},
	}
}

// The columns that do not grow.
const (
	idColumns   = 29 // wi_ and a ULID
	planColumns = 11
	ageColumns  = 8
	boardGap    = 2
)

// board draws the queue. The first column has the objective and below it the
// id; the second what is done and waited for. Both share what the terminal has.
func board(p *printer, agentID string, q *workv1.GetWorkQueueResponse, now time.Time) {
	n := q.GetCounts()
	p.printf("%s  %d open, %d completed  %s\n", p.paint(bold, agentID), n.GetOpen(), n.GetCompleted(), p.paint(dim, fmt.Sprint("revision ", q.GetRevision())))
	room := p.columns() - boardGap*4 - planColumns - ageColumns
	left := max(idColumns, room*3/5)
	widths := []int{left, max(room-left, 10), planColumns, ageColumns}
	empty := true
	for _, c := range classes(q) {
		if len(c.items) == 0 {
			continue
		}
		empty = false
		count := fmt.Sprint(c.total)
		if int(c.total) > len(c.items) {
			count = fmt.Sprintf("%d of %d", len(c.items), c.total)
		}
		p.printf("\n%s %s\n", p.paint(c.colour, strings.ToUpper(c.title)), p.paint(dim, "("+count+")"))
		for _, it := range c.items {
			boardItem(p, widths, it, now)
		}
	}
	if empty {
		p.printf("\nno work items\n")
	}
}

// boardItem draws one item as lines of four columns.
func boardItem(p *printer, widths []int, it *workv1.WorkItem, now time.Time) {
	objective := fold(it.GetObjective(), widths[0], 3)
	var doing []string
	for _, text := range doings(it, now) {
		doing = append(doing, fold(text, widths[1], 3)...)
	}
	for i := range max(len(objective)+1, len(doing)) {
		cells := [4]string{1: nth(doing, i)}
		colour := ""
		switch {
		case i < len(objective):
			cells[0], colour = objective[i], bold
		case i == len(objective):
			cells[0], colour = it.GetWorkItemId(), dim
		}
		if i == 0 {
			cells[2], cells[3] = short(it.GetPlanStatus()), age(it.GetCreatedAt(), now)
		}
		var line strings.Builder
		for c, cell := range cells {
			gap := strings.Repeat(" ", max(widths[c]-width(cell), 0)+boardGap)
			if c == 0 && colour != "" {
				cell = p.paint(colour, cell)
			}
			line.WriteString(cell + gap)
		}
		p.printf("  %s\n", strings.TrimRight(line.String(), " "))
	}
}

// doings are what an item's agent does, and what the item waits for.
func doings(it *workv1.WorkItem, now time.Time) []string {
	var out []string
	done := 0
	for _, t := range it.GetTodoList() {
		if t.GetState() == workv1.TodoState_TODO_STATE_COMPLETED {
			done++
		}
	}
	if t := it.GetCurrentTodo(); t != nil {
		out = append(out, fmt.Sprintf("%d/%d %s", done, len(it.GetTodoList()), t.GetText()))
	} else if len(it.GetTodoList()) > 0 {
		out = append(out, fmt.Sprintf("%d/%d done", done, len(it.GetTodoList())))
	}
	waits := false
	for _, w := range it.GetWaits() {
		text := short(w.GetMode()) + " " + short(w.GetKind())
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			text, waits = "waits: "+short(w.GetKind()), true
		}
		if w.GetResource() != "" {
			text += " " + w.GetResource()
		}
		if since := age(w.GetCreatedAt(), now); since != "" {
			text += " " + since
		}
		if n := w.GetTriggerCount() - w.GetConsumedCount(); n > 0 {
			text += fmt.Sprintf(" (came %d×)", n)
		}
		if w.GetReason() != "" {
			text += ": " + w.GetReason()
		}
		out = append(out, text)
	}
	if it.GetBlockedBy() != "" && !waits {
		out = append(out, "blocked: "+it.GetBlockedBy())
	}
	if it.GetResultSummary() != "" {
		out = append(out, it.GetResultSummary())
	}
	return out
}

func nth(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// age is how long ago something was, for a narrow column.
func age(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return ""
	}
	d := now.Sub(t.AsTime())
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
