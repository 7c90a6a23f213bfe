package events

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// Planes are the planes whose events can be chosen.
var Planes = []string{"agent", "work", "task", "waiting", "board"}

// Command returns `quartet events`.
func Command(s *session.Session) *cobra.Command {
	req := &eventv1.WatchEventsRequest{}
	var follow bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "events", Short: "Show events, and follow new ones", Args: input.None,
		Long: `Show events in order, one per line; -o json writes each as a line of JSON.

Without -f: all events so far. With -f: new events, until ^C or --timeout. If the
connection is lost, the command says so on stderr, waits for the server and
continues after the last event without gap or duplicate. --cursor continues after
an event that was seen earlier.`,
		Example: `  quartet events --agent keeper
  quartet events -f --plane work --plane waiting
  quartet events -f -o json --from-start | jq .event.eventType`,
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "Follow new events")
	f.StringVar(&req.AgentId, "agent", "", "Only events of this agent")
	f.StringVar(&req.WorkItemId, "item", "", "Only events about this work item")
	f.StringSliceVar(&req.Planes, "plane", nil, "Only events of these planes: "+strings.Join(Planes, ", "))
	input.Choices(cmd, "plane", Planes...)
	f.StringSliceVar(&req.EventTypes, "type", nil, "Only events of these types")
	f.BoolVar(&req.FromStart, "from-start", false, "With -f: all events so far first")
	f.StringVar(&req.Cursor, "cursor", "", "Continue after this cursor")
	f.DurationVar(&limit, "timeout", 0, "With -f: stop after this time; 0: never")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if !follow {
			if limit != 0 {
				return exit.UsageError("--timeout is for -f")
			}
			req.StopAtEnd = true
			req.FromStart = req.GetCursor() == ""
		}
		ctx, cancel := session.WithTimeout(cmd, limit)
		defer cancel()
		p := s.Printer(cmd)
		return (&Follower{Cmd: cmd, Conn: conn, Request: req, Receive: func(m *eventv1.WatchEventsResponse) error {
			switch {
			case m.GetEvent() == nil:
			case s.JSON():
				p.JSONLine(m)
			default:
				writeEvent(p, m.GetEvent())
			}
			return p.Err()
		}}).Run(ctx)
	})
	return cmd
}

// writeEvent writes an event as one line: time, plane, agent, type, the record it is
// about, and the change of an item's readiness.
func writeEvent(p *output.Printer, ev *eventv1.Event) {
	about := ev.GetWorkItemId()
	if ev.GetTaskId() != "" {
		about = ev.GetTaskId()
	}
	text := p.Paint(terminal.Dim, p.Milliseconds(ev.GetCreatedAt())) + "  " +
		output.Pad(ev.GetPlane(), 8) + output.Pad(ev.GetAgentId(), 16) +
		p.Paint(terminal.Bold, output.Pad(ev.GetEventType(), 28)) + output.Pad(about, 32)
	if ev.GetReadinessTo() != "" {
		from := ev.GetReadinessFrom()
		if from == "" {
			from = "new"
		}
		text += from + " -> " + output.StateWithReason(ev.GetReadinessTo(), ev.GetReadinessReason())
	}
	p.Printf("%s\n", strings.TrimRight(text, " "))
}
