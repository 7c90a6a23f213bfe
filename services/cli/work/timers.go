package work

import (
	"strconv"

	"github.com/spf13/cobra"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// TimerCommand returns `quartet timer`.
func TimerCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "timer", Short: "Timers: messages at a time, once or repeatedly",
		Aliases: []string{"timers"},
	})
	c.AddCommand(timerCreate(s), timerGet(s), timerCancel(s), timerList(s))
	return c
}

// timerCreate returns `quartet timer create`.
func timerCreate(s *session.Session) *cobra.Command {
	req := &waitingv1.CreateTimerRequest{}
	var after, at, every string
	cmd := &cobra.Command{
		Use: "create AGENT DESCRIPTION", Short: "Send the agent a message at a time, once or repeatedly",
		Args: input.Exactly("AGENT", "DESCRIPTION"),
		Long: `Send the agent a timer_tick message once, or repeatedly with --every. The first
time of a repeating timer is --after or --at, else one period from now; the others
are counted from it, so a late tick does not delay the next ones. Times that were
missed while the server was down or the agent stopped give one tick. The period is
at least 1s; times are at most 100 years ahead.`,
		Example: `  quartet timer create keeper "look at the dashboards" --after 30m
  quartet timer create keeper "the freeze begins" --at 2026-02-01T00:00:00Z
  quartet timer create keeper "the daily report" --at 2026-02-01T08:00:00Z --every 1d
  quartet timer create keeper "is the build done?" --every 10m --count 6`,
	}
	cmd.Flags().StringVar(&after, "after", "", "After this duration, such as 5m")
	cmd.Flags().StringVar(&at, "at", "", "At this time (RFC 3339)")
	cmd.Flags().StringVar(&every, "every", "", "Repeat with this period, such as 10m or 1d")
	cmd.Flags().Int64Var(&req.Count, "count", 0, "With --every: the total number of ticks (default: no limit)")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item that the timer is about")
	cmd.RunE = session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.CreateTimer,
		func(args []string) (*waitingv1.CreateTimerRequest, error) {
			req.AgentId, req.Description, req.RequestId = args[0], args[1], s.RequestID
			var err error
			if req.After, err = input.Duration("after", after); err != nil {
				return nil, err
			}
			if req.At, err = input.Time("at", at, s.Zone()); err != nil {
				return nil, err
			}
			if req.Every, err = input.Duration("every", every); err != nil {
				return nil, err
			}
			return req, nil
		},
		func(p *output.Printer, resp *waitingv1.CreateTimerResponse) {
			p.Printf("%s fires %s%s\n", resp.GetTimer().GetTimerId(), p.Time(resp.GetTimer().GetNextFireAt()),
				rhythm(resp.GetTimer(), ", then every "))
		})
	return s.Mutation(cmd)
}

// timerGet returns `quartet timer get`.
func timerGet(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT TIMER", Short: "Show a timer", Args: input.Exactly("AGENT", "TIMER"),
		Example: "  quartet timer get keeper tmr_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.GetTimer,
			func(args []string) (*waitingv1.GetTimerRequest, error) {
				return &waitingv1.GetTimerRequest{AgentId: args[0], TimerId: args[1]}, nil
			},
			func(p *output.Printer, resp *waitingv1.GetTimerResponse) {
				p.Table("no timer", timerColumns, [][]string{timerRow(p, resp.GetTimer())})
			}),
	}
}

// timerCancel returns `quartet timer cancel`.
func timerCancel(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT TIMER", Short: "Cancel a timer", Args: input.Exactly("AGENT", "TIMER"),
		Example: "  quartet timer cancel keeper tmr_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.CancelTimer,
		func(args []string) (*waitingv1.CancelTimerRequest, error) {
			return &waitingv1.CancelTimerRequest{AgentId: args[0], TimerId: args[1], RequestId: s.RequestID}, nil
		},
		func(p *output.Printer, resp *waitingv1.CancelTimerResponse) {
			p.Printf("%s %s\n", resp.GetTimer().GetTimerId(), pbjson.EnumText(resp.GetTimer().GetStatus()))
		})
	return s.Mutation(cmd)
}

// timerList returns `quartet timer list`.
func timerList(s *session.Session) *cobra.Command {
	req := &waitingv1.ListTimersRequest{}
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's timers", Args: input.Exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet timer list keeper --all",
	}
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "Include ended ones")
	return session.List(s, cmd, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.ListTimers,
		func(args []string) (*waitingv1.ListTimersRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		(*waitingv1.ListTimersResponse).GetTimers, "no timers",
		timerColumns, timerRow, session.Hidden(&req.IncludeEnded))
}

// timerColumns is the header of a table of timers.
var timerColumns = []string{"TIMER", "STATUS", "FIRES", "FIRED", "EVERY", "SKIPPED", "ITEM", "DESCRIPTION"}

// timerRow returns the cells of a timer below timerColumns.
func timerRow(p *output.Printer, t *waitingv1.Timer) []string {
	return []string{
		t.GetTimerId(), pbjson.EnumText(t.GetStatus()), p.Time(t.GetNextFireAt()), output.Number(t.GetFireCount()),
		rhythm(t, ""),
		output.Number(t.GetSkippedCount()), t.GetWorkItemId(), output.Flexible(t.GetDescription()),
	}
}

// rhythm returns prefix, the period of a repeating timer and its total number of
// ticks; "" for a timer that fires once.
func rhythm(t *waitingv1.Timer, prefix string) string {
	if t.GetEvery() == nil {
		return ""
	}
	text := prefix + t.GetEvery().AsDuration().String()
	if t.GetCount() > 0 {
		text += " x" + strconv.FormatInt(t.GetCount(), 10)
	}
	return text
}
