package work

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
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/events"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// boardCommand returns `quartet work board`.
func boardCommand(s *session.Session) *cobra.Command {
	var watch bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "board AGENT", Short: "Draw the queue of work items, class by class", Args: input.Exactly("AGENT"),
		Long: `Draw the item in focus and each class of candidates in the order in which the
scheduler takes them: objective and id, current todo and waits, plan status and
age. With --watch the picture is drawn again after each change, until ^C or
--timeout; -o json then writes each queue as a line.`,
		Example: "  quartet work board keeper\n  quartet work board keeper --watch",
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Draw again after each change")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --watch: stop after this time; 0: never")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if watch {
			ctx, cancel := session.WithTimeout(cmd, limit)
			defer cancel()
			return watchQueue(ctx, s, cmd, conn, args[0])
		}
		q, err := readQueue(cmd.Context(), conn, args[0])
		if err != nil {
			return err
		}
		return s.Show(cmd, q, func(p *output.Printer) { DrawQueue(p, args[0], q, s.Now()) })
	})
	return cmd
}

// readQueue reads the queue without the texts of the plans.
func readQueue(ctx context.Context, conn *grpc.ClientConn, agentID string) (*workv1.GetWorkQueueResponse, error) {
	return workv1.NewWorkServiceClient(conn).GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{
		AgentId: agentID, OmitPlans: true,
	})
}

// watchQueue draws the queue, and draws it again for each event of the agent's work
// plane after which the queue has another revision. The first message of the stream
// draws too, so that a change between the first picture and the stream is shown.
func watchQueue(ctx context.Context, s *session.Session, cmd *cobra.Command, conn *grpc.ClientConn,
	agentID string,
) error {
	p := s.Printer(cmd)
	drawn := int64(-1)
	draw := func() error {
		q, err := readQueue(ctx, conn, agentID)
		if err != nil || q.GetRevision() == drawn {
			return err
		}
		if s.JSON() {
			p.JSONLine(q)
		} else {
			p.Clear(drawn < 0)
			DrawQueue(p, agentID, q, s.Now())
		}
		drawn = q.GetRevision()
		return p.Err()
	}
	// An agent that does not exist is an error at once; the stream would wait for it.
	if err := draw(); err != nil {
		return err
	}
	f := &events.Follower{Cmd: cmd, Conn: conn, Request: &eventv1.WatchEventsRequest{
		AgentId: agentID, Planes: []string{"work"},
	}, Reconnected: draw}
	f.Receive = func(*eventv1.WatchEventsResponse) error {
		err := draw()
		if err != nil && events.Temporary(err) && p.Err() == nil {
			return nil // the stream fails too, and reconnects
		}
		return err
	}
	return f.Run(ctx)
}

// class is one class of candidates, or the focus, as the picture shows it.
type class struct {
	title, colour string
	items         []*workv1.WorkItem
	total         int32 // items of the class, also those that items does not have
}

// classes returns the classes in the order of the picture.
func classes(q *workv1.GetWorkQueueResponse) []class {
	n := q.GetCounts()
	focus := class{title: "in focus", colour: terminal.Green}
	if q.GetCurrent() != nil {
		focus.items, focus.total = []*workv1.WorkItem{q.GetCurrent()}, 1
	}
	return []class{
		focus,
		{"triggered, to review", terminal.Violet, q.GetTriggeredBlocked(), n.GetTriggeredBlocked()},
		{"queued, runnable", terminal.Cyan, q.GetQueuedRunnable(), n.GetQueuedRunnable()},
		{"waiting for an operator", terminal.Yellow, q.GetWaitingForOperator(), n.GetWaitingForOperator()},
		{"blocked", terminal.Red, q.GetBlocked(), n.GetBlocked()},
		{"completed recently", terminal.Dim, q.GetCompletedRecent(), n.GetCompleted()},
	}
}

// Widths of the columns that do not grow with the terminal.
const (
	idColumns   = 29 // wi_ and a ULID
	planColumns = 11
	ageColumns  = 8
	columnGap   = 2
)

// DrawQueue draws the queue. The first column has the objective and below it the
// id; the second the current todo and the waits. These two share the width that the
// others leave.
func DrawQueue(p *output.Printer, agentID string, q *workv1.GetWorkQueueResponse, now time.Time) {
	n := q.GetCounts()
	p.Printf("%s  %d open, %d completed  %s\n", p.Paint(terminal.Bold, agentID), n.GetOpen(), n.GetCompleted(),
		p.Paint(terminal.Dim, fmt.Sprint("revision ", q.GetRevision())))
	room := p.Columns() - columnGap*4 - planColumns - ageColumns
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
		p.Printf("\n%s %s\n", p.Paint(c.colour, strings.ToUpper(c.title)), p.Paint(terminal.Dim, "("+count+")"))
		for _, it := range c.items {
			drawItem(p, widths, it, now)
		}
	}
	if empty {
		p.Printf("\nno work items\n")
	}
}

// drawItem draws one item as lines of four columns.
func drawItem(p *output.Printer, widths []int, it *workv1.WorkItem, now time.Time) {
	objective := output.Wrap(it.GetObjective(), widths[0], 3)
	var progress []string
	for _, text := range progressOf(it, now) {
		progress = append(progress, output.Wrap(text, widths[1], 3)...)
	}
	for i := range max(len(objective)+1, len(progress)) {
		cells := [4]string{1: lineAt(progress, i)}
		colour := ""
		switch {
		case i < len(objective):
			cells[0], colour = objective[i], terminal.Bold
		case i == len(objective):
			cells[0], colour = it.GetWorkItemId(), terminal.Dim
		}
		if i == 0 {
			cells[2], cells[3] = pbjson.EnumText(it.GetPlanStatus()), age(it.GetCreatedAt(), now)
		}
		var line strings.Builder
		for c, cell := range cells {
			gap := strings.Repeat(" ", max(widths[c]-output.Width(cell), 0)+columnGap)
			if c == 0 && colour != "" {
				cell = p.Paint(colour, cell)
			}
			line.WriteString(cell + gap)
		}
		p.Printf("  %s\n", strings.TrimRight(line.String(), " "))
	}
}

// progressOf returns texts about an item's progress: its todos, waits, blocker and
// report.
func progressOf(it *workv1.WorkItem, now time.Time) []string {
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
		text := pbjson.EnumText(w.GetMode()) + " " + pbjson.EnumText(w.GetKind())
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			text, waits = "waits: "+pbjson.EnumText(w.GetKind()), true
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

// lineAt returns line i, or "" after the last one.
func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// age formats the time since t for a narrow column.
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
