package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
)

func (ss *session) eventsCommand() *cobra.Command {
	req := &eventv1.WatchEventsRequest{}
	var follow bool
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened, and what happens", Args: none,
		Long: `Show events in order, one a line; -o json writes each as a line of JSON.

Without -f: everything so far, then the end. With -f: from now on, and if the
connection is lost, on from the last event without gap or duplicate. --cursor
goes on after an event that was seen earlier.`,
		Example: `  quartet events --agent keeper
  quartet events -f --plane work --plane waiting
  quartet events -f -o json --from-start | jq .event.eventType`,
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "Go on with what is to come")
	f.StringVar(&req.AgentId, "agent", "", "Only of this agent")
	f.StringVar(&req.WorkItemId, "item", "", "Only about this work item")
	f.StringSliceVar(&req.Planes, "plane", nil, "Only of these planes: agent, work, task, waiting")
	f.StringSliceVar(&req.EventTypes, "type", nil, "Only of these types")
	f.BoolVar(&req.FromStart, "from-start", false, "With -f: everything so far first")
	f.StringVar(&req.Cursor, "cursor", "", "Go on after this cursor")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if !follow {
			req.StopAtEnd = true
			req.FromStart = req.GetCursor() == ""
		}
		return ss.watch(cmd, eventv1.NewEventServiceClient(conn), req)
	})
	return cmd
}

// watch streams, and goes on from the last cursor when the connection is lost.
func (ss *session) watch(cmd *cobra.Command, client eventv1.EventServiceClient, req *eventv1.WatchEventsRequest) error {
	p := newPrinter(cmd.OutOrStdout())
	began := false // something came, so the request is good and the server was there
	wait := 100 * time.Millisecond
	for {
		err := ss.receive(cmd.Context(), p, client, req, func(cursor string) {
			req.Cursor, req.FromStart = cursor, false
			began, wait = true, 100*time.Millisecond
		})
		switch {
		case err == nil, p.err != nil:
			return p.err
		case cmd.Context().Err() != nil:
			return nil //nolint:nilerr // interrupted: how a follower is ended
		case !began || !errors.Is(err, fault.NotReady):
			return err
		}
		cmd.PrintErrf("connection lost; going on from the last event\n")
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-cmd.Context().Done():
			timer.Stop()
			return nil
		}
		wait = min(2*wait, 5*time.Second)
	}
}

func (ss *session) receive(ctx context.Context, p *printer, client eventv1.EventServiceClient, req *eventv1.WatchEventsRequest, reached func(cursor string)) error {
	stream, err := client.WatchEvents(ctx, req)
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ev := resp.GetEvent()
		switch {
		case ev == nil:
			reached(resp.GetHeartbeatCursor())
			continue
		case ss.output == formJSON:
			p.jsonLine(resp)
		default:
			line(p, ev)
		}
		if p.err != nil {
			return p.err
		}
		reached(ev.GetCursor())
	}
}

func line(p *printer, ev *eventv1.Event) {
	about := ev.GetWorkItemId()
	if ev.GetTaskId() != "" {
		about = ev.GetTaskId()
	}
	text := p.paint(dim, ev.GetCreatedAt().AsTime().Local().Format("2006-01-02 15:04:05.000")) + "  " +
		pad(ev.GetPlane(), 8) + pad(ev.GetAgentId(), 16) + p.paint(bold, pad(ev.GetEventType(), 28)) + pad(about, 32)
	if ev.GetReadinessTo() != "" {
		from := ev.GetReadinessFrom()
		if from == "" {
			from = "new"
		}
		text += from + " -> " + ruled(ev.GetReadinessTo(), ev.GetReadinessReason())
	}
	p.printf("%s\n", trimRight(text))
}

func pad(s string, columns int) string {
	for n := width(s); n < columns; n++ {
		s += " "
	}
	return s + " "
}

func trimRight(s string) string {
	for len(s) > 0 && s[len(s)-1] == ' ' {
		s = s[:len(s)-1]
	}
	return s
}
