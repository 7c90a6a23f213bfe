package agents

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// ordered is what every order answers with: the agent as it stands.
type ordered interface{ GetAgent() *agentv1.Agent }

// agentOrder makes the command of an order that needs an agent and a reason.
func orderCommand(s *session.Session, name, short, long string, give func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (ordered, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " AGENT", Short: short, Long: long, Args: input.Exactly("AGENT"),
		Example: "  quartet agent " + name + " keeper\n  quartet agent " + name + ` keeper --reason "maintenance until noon"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why, for people; agent get shows it")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := give(cmd.Context(), agentv1.NewAgentServiceClient(conn), args[0], s.RequestID, reason)
		if err != nil {
			return err
		}
		return showControl(s, cmd, resp)
	})
	return s.Mutation(cmd)
}

func pauseCommand(s *session.Session) *cobra.Command {
	return orderCommand(s, "pause", "Let an agent begin no turns",
		`Let an agent begin no turns. Messages, triggers and timers are still taken and
wait in its lane. A turn that is open goes on to its end; "agent abort" cuts it
short and pauses, "agent stop" also keeps outside events away.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (ordered, error) {
			return c.PauseAgent(ctx, &agentv1.PauseAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

func resumeCommand(s *session.Session) *cobra.Command {
	return orderCommand(s, "resume", "End a pause",
		`End a pause. It begins no turn by itself: what waits in the lane, or runnable
work, does. A stopped agent is started with "agent start".`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (ordered, error) {
			return c.ResumeAgent(ctx, &agentv1.ResumeAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

func stopCommand(s *session.Session) *cobra.Command {
	return orderCommand(s, "stop", "End the open turn and take operators' messages only",
		`End the open turn, whose message goes back to the lane, and begin no other.
While an agent is stopped its triggers answer 403 and outside events are refused;
operators' messages and the results of its tasks are kept for later. Its commands
run on.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (ordered, error) {
			return c.StopAgent(ctx, &agentv1.StopAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

func startCommand(s *session.Session) *cobra.Command {
	return orderCommand(s, "start", "Let a stopped or paused agent go on",
		`Let a stopped or paused agent go on. It begins no turn and repeats no command by
itself: what waits in the lane, or runnable work, does.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (ordered, error) {
			return c.StartAgent(ctx, &agentv1.StartAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

func abortCommand(s *session.Session) *cobra.Command {
	req := &agentv1.AbortRunRequest{}
	cmd := &cobra.Command{
		Use: "abort AGENT", Short: "Cut the open turn short and pause", Args: input.Exactly("AGENT"),
		Long: `Cut the open turn short. Its message ends as aborted and is not tried again, and
the agent is paused so that it does not take the same path at once; items, waits
and commands stay as they are. With --run only that run is aborted: if another
one is open by now, nothing happens and the command ends with code 4.`,
		Example: "  quartet agent abort keeper\n  quartet agent abort keeper --run run_01h… --reason \"wrong branch\"",
	}
	cmd.Flags().StringVar(&req.RunId, "run", "", "Only if this run is the open one; agent get shows it")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "Why, for people")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.RequestId = args[0], s.RequestID
		resp, err := agentv1.NewAgentServiceClient(conn).AbortRun(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			aborted := "no turn was open"
			if resp.GetTurn() != nil {
				aborted = resp.GetTurn().GetTurnId() + " " + pbjson.EnumText(resp.GetTurn().GetState())
			}
			p.Fields("agent", resp.GetAgent().GetAgentId(), "turn", aborted, "control", controlOf(resp.GetAgent()))
		})
	})
	return s.Mutation(cmd)
}

func deleteCommand(s *session.Session) *cobra.Command {
	req := &agentv1.DeleteAgentRequest{}
	cmd := &cobra.Command{
		Use: "delete AGENT", Short: "End an agent for ever", Args: input.Exactly("AGENT"),
		Long: `End an agent for ever, with its private children: its turn ends, its lane is
dropped, its waits, triggers and timers end, its commands are stopped. Open work
items stay, blocked by owner_deleted. The id is never used again. The deletion is
on disk when the command answers and goes on by itself; "agent get" says when the
lifecycle is deleted.`,
		Example: "  quartet agent delete keeper\n  quartet agent delete keeper --revision 4 --reason \"the project ended\"",
	}
	cmd.Flags().Int64Var(&req.ExpectedRevision, "revision", 0, "Only if the agent is at this revision")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "Why, for people")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.RequestId = args[0], s.RequestID
		resp, err := agentv1.NewAgentServiceClient(conn).DeleteAgent(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Fields("agent", resp.GetAgent().GetAgentId(), "lifecycle", pbjson.EnumText(resp.GetAgent().GetLifecycle()), "revision", output.Number(resp.GetAgent().GetRevision()))
		})
	})
	return s.Mutation(cmd)
}

func childrenCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListDelegationsRequest{}
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "children AGENT", Short: "List an agent's delegations to private children, newest first", Args: input.Exactly("AGENT"),
		Long: `List an agent's delegations to private children, newest first: what each child
was asked, for which item, and what came of it. A child is spoken to through its
task: "task input" follows up, "task output" shows how it stands and its result,
"task stop" ends it.`,
		Example: "  quartet agent children keeper --open\n  quartet task output keeper tsk_01h…",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			resp, err := agentv1.NewAgentServiceClient(conn).ListDelegations(cmd.Context(), req)
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) {
				var rows [][]string
				for _, d := range resp.GetDelegations() {
					how := d.GetOutcome()
					if how == "" {
						how = pbjson.EnumText(d.GetState())
					}
					rows = append(rows, []string{d.GetChildAgentId(), d.GetTaskId(), how, d.GetParentWorkItemId(), output.Shorten(d.GetLabel(), 40), output.Shorten(d.GetResultSummary(), 40)})
				}
				p.Table("no delegations", []string{"CHILD", "TASK", "STATE", "FOR", "ASKED", "RESULT"}, rows)
				p.NextPage(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.OpenOnly, "open", false, "Only those that are open")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only those for this item")
	pages.Flags(cmd)
	return cmd
}

func showControl(s *session.Session, cmd *cobra.Command, resp ordered) error {
	show := func(p *output.Printer) {
		p.Fields("agent", resp.GetAgent().GetAgentId(), "control", controlOf(resp.GetAgent()))
	}
	switch m := resp.(type) {
	case *agentv1.PauseAgentResponse:
		return s.Show(cmd, m, show)
	case *agentv1.ResumeAgentResponse:
		return s.Show(cmd, m, show)
	case *agentv1.StopAgentResponse:
		return s.Show(cmd, m, show)
	case *agentv1.StartAgentResponse:
		return s.Show(cmd, m, show)
	}
	return nil
}

// controlOf says who set an agent's control, when, and why.
func controlOf(a *agentv1.Agent) string {
	text := pbjson.EnumText(a.GetControl())
	if a.GetControlBy() != "" {
		text += " by " + a.GetControlBy() + " at " + output.Time(a.GetControlAt())
	}
	return output.Printable(text + output.Detail(a.GetControlReason()))
}
