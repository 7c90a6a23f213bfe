package agents

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// controlResponse is the response of every call that sets an agent's control.
type controlResponse interface{ GetAgent() *agentv1.Agent }

// controlCommand returns the command `quartet agent NAME`, which calls set for its agent with
// the given --reason.
func controlCommand(s *session.Session, name, short, long string,
	set func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (controlResponse,
		error),
) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " AGENT", Short: short, Long: long, Args: input.Exactly("AGENT"),
		Example: "  quartet agent " + name + " keeper\n  quartet agent " + name +
			` keeper --reason "maintenance until noon"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "The reason, for people; agent get shows it")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := set(cmd.Context(), agentv1.NewAgentServiceClient(conn), args[0], s.RequestID, reason)
		if err != nil {
			return err
		}
		return showControl(s, cmd, resp)
	})
	return s.Mutation(cmd)
}

// pauseCommand returns `quartet agent pause`.
func pauseCommand(s *session.Session) *cobra.Command {
	return controlCommand(s, "pause", "Start no further turns of an agent",
		`Start no further turns of an agent. Messages and deliveries of triggers and timers
are still accepted and stay in its lane. An open turn continues until it ends;
"agent abort" ends it and pauses, "agent stop" also refuses outside events.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (controlResponse,
			error,
		) {
			return c.PauseAgent(ctx, &agentv1.PauseAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

// resumeCommand returns `quartet agent resume`.
func resumeCommand(s *session.Session) *cobra.Command {
	return controlCommand(s, "resume", "End a pause",
		`End a pause. This alone starts no turn: queued messages and runnable work items
do. A stopped agent is started with "agent start".`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (controlResponse,
			error,
		) {
			return c.ResumeAgent(ctx, &agentv1.ResumeAgentRequest{
				AgentId: agentID, RequestId: requestID,
				Reason: reason,
			})
		})
}

// stopCommand returns `quartet agent stop`.
func stopCommand(s *session.Session) *cobra.Command {
	return controlCommand(s, "stop", "End the open turn and refuse outside events",
		`End the open turn, return its message to the lane, and start no other turn.
While an agent is stopped, its triggers answer 403 and outside events are refused;
messages of operators and the results of its tasks are kept in the lane. Its
commands continue to run.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (controlResponse,
			error,
		) {
			return c.StopAgent(ctx, &agentv1.StopAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

// startCommand returns `quartet agent start`.
func startCommand(s *session.Session) *cobra.Command {
	return controlCommand(s, "start", "Let a stopped or paused agent continue",
		`Let a stopped or paused agent continue. This alone starts no turn and repeats no
command: queued messages and runnable work items start turns.`,
		func(ctx context.Context, c agentv1.AgentServiceClient, agentID, requestID, reason string) (controlResponse,
			error,
		) {
			return c.StartAgent(ctx, &agentv1.StartAgentRequest{AgentId: agentID, RequestId: requestID, Reason: reason})
		})
}

// abortCommand returns `quartet agent abort`.
func abortCommand(s *session.Session) *cobra.Command {
	req := &agentv1.AbortRunRequest{}
	cmd := &cobra.Command{
		Use: "abort AGENT", Short: "End the open turn and pause the agent", Args: input.Exactly("AGENT"),
		Long: `End the open turn at once. Its message is marked as aborted and is not tried
again. The agent is paused, so that it does not repeat the same actions at once;
its work items, waits and commands do not change. With --run only that run is
aborted: if another one is open by now, nothing changes and the exit code is 4.`,
		Example: "  quartet agent abort keeper\n  quartet agent abort keeper --run run_01h… --reason \"wrong branch\"",
	}
	cmd.Flags().StringVar(&req.RunId, "run", "", "Only if this run is the open one; agent get shows its id")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "The reason, for people")
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.AbortRun,
		func(args []string) (*agentv1.AbortRunRequest, error) {
			req.AgentId, req.RequestId = args[0], s.RequestID
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.AbortRunResponse) {
			aborted := "no turn was open"
			if resp.GetTurn() != nil {
				aborted = resp.GetTurn().GetTurnId() + " " + pbjson.EnumText(resp.GetTurn().GetState())
			}
			p.Fields("agent", resp.GetAgent().GetAgentId(), "turn", aborted, "control", controlOf(p, resp.GetAgent()))
		})
	return s.Mutation(cmd)
}

// deleteCommand returns `quartet agent delete`.
func deleteCommand(s *session.Session) *cobra.Command {
	req := &agentv1.DeleteAgentRequest{}
	cmd := &cobra.Command{
		Use: "delete AGENT", Short: "Delete an agent permanently", Args: input.Exactly("AGENT"),
		Long: `Delete an agent and its private children permanently: its turn ends, its queued
messages are dropped, its waits, triggers and timers end, and its commands are
stopped. The output of its commands is removed. Open work items are kept, blocked by
owner_deleted. When the server's erase-after has passed (24 h by default), everything
that it had is erased, its home and its records too. The id cannot be used again. You
are asked for the id once more, or give --yes. When the command returns, the deletion
is on disk; it completes in the background, and "agent get" then shows the lifecycle
"deleted", until it is erased.`,
		Example: "  quartet agent delete keeper\n  quartet agent delete keeper --yes --revision 4 --reason \"the " +
			"project ended\"",
	}
	cmd.Flags().Int64Var(&req.ExpectedRevision, "revision", 0, "Only if the agent has this revision")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "The reason, for people")
	cmd.RunE = session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.DeleteAgent,
		func(args []string) (*agentv1.DeleteAgentRequest, error) {
			req.AgentId, req.RequestId = args[0], s.RequestID
			return req, nil
		},
		func(p *output.Printer, resp *agentv1.DeleteAgentResponse) {
			p.Fields("agent", resp.GetAgent().GetAgentId(), "lifecycle",
				pbjson.EnumText(resp.GetAgent().GetLifecycle()), "revision",
				output.Number(resp.GetAgent().GetRevision()))
		})
	return input.Confirm(s.Mutation(cmd), "deletes agent %s and everything that it has permanently")
}

// childrenCommand returns `quartet agent children`.
func childrenCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListDelegationsRequest{}
	cmd := &cobra.Command{
		Use: "children AGENT", Short: "List an agent's delegations to private children, newest first",
		Args: input.Exactly("AGENT"),
		Long: `List an agent's delegations to private children, newest first: all open ones and
the newest 256 completed ones. Each has the request, the work item it is for, and
the result. A child is controlled through its task: "task
input" sends it a message, "task output" shows its state and result, "task stop"
ends it.`,
		Example: "  quartet agent children keeper --open\n  quartet task output keeper tsk_01h…",
	}
	cmd.Flags().BoolVar(&req.OpenOnly, "open", false, "Only open delegations")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only delegations for this work item")
	return session.List(s, cmd, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListDelegations,
		func(args []string) (*agentv1.ListDelegationsRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		(*agentv1.ListDelegationsResponse).GetDelegations, "no delegations",
		[]string{"CHILD", "TASK", "STATE", "FOR", "ASKED", "RESULT"},
		func(p *output.Printer, d *agentv1.Delegation) []string {
			outcome := pbjson.EnumText(d.GetOutcome())
			if outcome == "" {
				outcome = pbjson.EnumText(d.GetState())
			}
			return []string{
				d.GetChildAgentId(), d.GetTaskId(), outcome, d.GetParentWorkItemId(),
				output.Flexible(d.GetLabel()), output.Flexible(d.GetResultSummary()),
			}
		})
}

// showControl prints the control that an agent has now.
func showControl(s *session.Session, cmd *cobra.Command, resp controlResponse) error {
	show := func(p *output.Printer) {
		p.Fields("agent", resp.GetAgent().GetAgentId(), "control", controlOf(p, resp.GetAgent()))
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

// controlOf describes an agent's control: who set it, when and for which reason.
func controlOf(p *output.Printer, a *agentv1.Agent) string {
	text := pbjson.EnumText(a.GetControl())
	if a.GetControlBy() != "" {
		text += " by " + a.GetControlBy() + " at " + p.Time(a.GetControlAt())
	}
	return terminal.Printable(text + output.Detail(a.GetControlReason()))
}
