package agents

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// Command returns `quartet agent`.
func Command(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "agent", Short: "Agents, their messages and their turns",
		Aliases: []string{"agents"},
	})
	c.AddCommand(spawnCommand(s), getCommand(s), listCommand(s), sayCommand(s), messagesCommand(s), turnsCommand(s),
		roundsCommand(s), conversationCommand(s), briefsCommand(s), childrenCommand(s),
		contextCommand(s), toolsCommand(s),
		pauseCommand(s), resumeCommand(s), stopCommand(s), startCommand(s), abortCommand(s), deleteCommand(s))
	return c
}

// spawnCommand returns `quartet agent spawn`.
func spawnCommand(s *session.Session) *cobra.Command {
	var message, parent, context, mode, root string
	cmd := &cobra.Command{
		Use: "spawn [AGENT]", Short: "Create an agent",
		Long: `Create an agent. Give either AGENT or --parent. With AGENT, its name, it is a
public agent, to which operators send messages. With --parent it is a private child
with a generated id. A child needs a first message; the id of its task is printed too, with which
the parent sends further input, reads the result and stops the child.`,
		Example: `  quartet agent spawn keeper
  quartet agent spawn keeper --message "You keep the releases" --workspace /srv/repo
  quartet agent spawn --parent keeper --context fork --message "Check the changelog"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exit.UsageError("at most one AGENT")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&message, "message", "m", "", `Its first message; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringVar(&parent, "parent", "", "Create a private child of this agent")
	cmd.Flags().StringVar(&context, "context", "", "The context that a child starts with: fresh (default) or fork "+
		"(also a bounded view of its parent's current work item)")
	input.EnumChoices[agentv1.Context](cmd, "context")
	cmd.Flags().StringVar(&mode, "workspace-mode", "", "Where a child's commands run: inherit (default; where its "+
		"parent's do) or worktree (a git worktree of its own)")
	input.EnumChoices[agentv1.WorkspaceMode](cmd, "workspace-mode")
	cmd.Flags().StringVar(&root, "workspace", "", "Absolute directory in which a public agent's commands run; not "+
		"with --parent")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req := &agentv1.SpawnAgentRequest{
			RequestId: s.RequestID, ParentAgentId: parent, WorkspaceRoot: root,
			Preset: agentv1.Preset_PRESET_PRIVATE_CHILD,
		}
		if len(args) == 1 {
			req.AgentId, req.Preset = args[0], agentv1.Preset_PRESET_PUBLIC_NAMED
		} else if parent == "" {
			return exit.UsageError("AGENT is missing (or --parent, for a private child)")
		}
		var err error
		if req.InitialMessage, err = input.Text(cmd, message); err != nil {
			return err
		}
		if req.Context, err = input.Enum[agentv1.Context]("context", context); err != nil {
			return err
		}
		if req.WorkspaceMode, err = input.Enum[agentv1.WorkspaceMode]("workspace-mode", mode); err != nil {
			return err
		}
		resp, err := agentv1.NewAgentServiceClient(conn).SpawnAgent(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s\n", resp.GetAgentId())
			if resp.GetTaskId() != "" {
				p.Printf("%s\n", resp.GetTaskId())
			}
		})
	})
	return s.Mutation(cmd)
}

// getCommand returns `quartet agent get`.
func getCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT", Short: "Show an agent: its posture and the reason, its focus, its lane, its children",
		Args: input.Exactly("AGENT"), Aliases: []string{"show"},
		Example: "  quartet agent get keeper\n  quartet agent show keeper -o json",
		RunE: session.Call(s, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.GetAgent,
			func(args []string) (*agentv1.GetAgentRequest, error) {
				return &agentv1.GetAgentRequest{AgentId: args[0]}, nil
			},
			func(p *output.Printer, resp *agentv1.GetAgentResponse) {
				a := resp.GetAgent()
				fields := []string{
					"agent", a.GetAgentId(),
					"posture", terminal.Printable(pbjson.EnumText(a.GetPosture()) +
						output.Detail(a.GetPostureReason())),
					"control", controlOf(p, a),
					"focus", a.GetCurrentWorkItemId(),
					"lane", laneOf(a.GetLane()),
					"run", a.GetCurrentRunId(),
					"visibility", pbjson.EnumText(a.GetVisibility()),
					"parent", a.GetLineageParentAgentId(),
					"supervisor", a.GetSupervisorAgentId(),
					"workspace", terminal.Printable(a.GetWorkspaceRoot()),
					"lifecycle", pbjson.EnumText(a.GetLifecycle()),
					"revision", output.Number(a.GetRevision()),
					"created", p.Time(a.GetCreatedAt()),
				}
				for _, c := range resp.GetChildren() {
					fields = append(fields, "child", c.GetAgentId()+" "+pbjson.EnumText(c.GetLifecycle())+" "+
						pbjson.EnumText(c.GetControl()))
				}
				p.Fields(fields...)
			}),
	}
}

// laneOf lists how many messages of a lane are in each state, without the zeros.
func laneOf(l *agentv1.Lane) string {
	text := ""
	for _, n := range []struct {
		count int32
		name  string
	}{{l.GetQueued(), "queued"}, {l.GetDequeued(), "in the turn"}, {l.GetQuarantined(), "quarantined"}} {
		if n.count > 0 {
			if text != "" {
				text += ", "
			}
			text += output.Number(n.count) + " " + n.name
		}
	}
	return text
}

// listCommand returns `quartet agent list`.
func listCommand(s *session.Session) *cobra.Command {
	req := &agentv1.ListAgentsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List agents", Args: input.None, Aliases: []string{"ls"},
		Example: "  quartet agent list\n  quartet agent list --private --parent keeper",
	}
	cmd.Flags().BoolVar(&req.IncludeDeleted, "deleted", false, "Include deleted agents")
	cmd.Flags().BoolVar(&req.IncludePrivate, "private", false, "Include private agents")
	cmd.Flags().StringVar(&req.LineageParentAgentId, "parent", "", "Only children that this agent created")
	return session.List(s, cmd, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListAgents,
		func(_ []string) (*agentv1.ListAgentsRequest, error) {
			return req, nil
		},
		(*agentv1.ListAgentsResponse).GetAgents, "no agents",
		[]string{"AGENT", "POSTURE", "CONTROL", "QUEUED", "FOCUS", "WHY"},
		func(p *output.Printer, a *agentv1.Agent) []string {
			return []string{
				a.GetAgentId(), pbjson.EnumText(a.GetPosture()), pbjson.EnumText(a.GetControl()),
				output.Number(a.GetLane().GetQueued()),
				a.GetCurrentWorkItemId(), output.Flexible(a.GetPostureReason()),
			}
		})
}

// sayCommand returns `quartet agent say`.
func sayCommand(s *session.Session) *cobra.Command {
	req := &agentv1.EnqueueMessageRequest{}
	var kind, priority string
	var now bool
	cmd := &cobra.Command{
		Use: "say AGENT TEXT", Short: "Put a message into an agent's lane", Args: input.Exactly("AGENT", "TEXT"),
		Long: `Put a message into an agent's lane. When the command returns, the message is on
disk. With --interject it reaches a running turn between two replies of the model;
if the turn ends before, it is the first message of the next turn.`,
		Example: `  quartet agent say keeper "Prepare release 1.4"
  quartet agent say keeper --interject "Stop, wrong branch"
  git diff | quartet agent say keeper -`,
	}
	cmd.Flags().StringVar(&priority, "priority", "", "interject, next, normal or background (default normal)")
	input.EnumChoices[agentv1.Priority](cmd, "priority")
	cmd.Flags().BoolVar(&now, "interject", false, "Short for --priority interject")
	cmd.Flags().StringVar(&kind, "kind", "", "operator_prompt, channel_event, webhook_event or callback_event "+
		"(default: by the role of the credential)")
	input.Choices(cmd, "kind", "operator_prompt", "channel_event", "webhook_event", "callback_event")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item that the message is about")
	cmd.Flags().StringVar(&req.CorrelationId, "correlation", "", "An id of your own that groups messages, such as a "+
		"thread's")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.RequestId = args[0], s.RequestID
		var err error
		if req.Text, err = input.Text(cmd, args[1]); err != nil {
			return err
		}
		if now {
			if priority != "" && priority != "interject" {
				return exit.UsageError("--interject and --priority " + priority + " contradict each other")
			}
			priority = "interject"
		}
		if req.Priority, err = input.Enum[agentv1.Priority]("priority", priority); err != nil {
			return err
		}
		if req.Kind, err = input.Enum[agentv1.MessageKind]("kind", kind); err != nil {
			return err
		}
		resp, err := agentv1.NewAgentServiceClient(conn).EnqueueMessage(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { p.Printf("%s\n", resp.GetMessageId()) })
	})
	return s.Mutation(cmd)
}

// messagesCommand returns `quartet agent messages`.
func messagesCommand(s *session.Session) *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use: "messages AGENT", Short: "List an agent's messages", Args: input.Exactly("AGENT"),
		Example: "  quartet agent messages keeper --state quarantined",
	}
	cmd.Flags().StringVar(&state, "state", "", "Only messages in this state: queued, dequeued, processed, "+
		"interjected, aborted, dropped or quarantined")
	input.EnumChoices[agentv1.MessageState](cmd, "state")
	return session.List(s, cmd, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListMessages,
		func(args []string) (*agentv1.ListMessagesRequest, error) {
			only, err := input.Enum[agentv1.MessageState]("state", state)
			if err != nil {
				return nil, err
			}
			return &agentv1.ListMessagesRequest{AgentId: args[0], State: only}, nil
		},
		(*agentv1.ListMessagesResponse).GetMessages, "no messages",
		[]string{"MESSAGE", "STATE", "KIND", "PRIORITY", "QUEUED", "TEXT"},
		func(p *output.Printer, m *agentv1.Message) []string {
			return []string{
				m.GetMessageId(), pbjson.EnumText(m.GetState()), pbjson.EnumText(m.GetKind()),
				pbjson.EnumText(m.GetPriority()), p.Time(m.GetCreatedAt()), output.Flexible(m.GetText()),
			}
		})
}

// turnsCommand returns `quartet agent turns`.
func turnsCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "turns AGENT", Short: "List an agent's turns, newest first", Args: input.Exactly("AGENT"),
		Example: "  quartet agent turns keeper --page-size 5",
	}
	return session.List(s, cmd, agentv1.NewAgentServiceClient, agentv1.AgentServiceClient.ListTurns,
		func(args []string) (*agentv1.ListTurnsRequest, error) {
			return &agentv1.ListTurnsRequest{AgentId: args[0]}, nil
		},
		(*agentv1.ListTurnsResponse).GetTurns, "no turns",
		[]string{"TURN", "STATE", "END", "ROUNDS", "CHANGES", "ITEM", "STARTED"},
		func(p *output.Printer, t *agentv1.Turn) []string {
			return []string{
				t.GetTurnId(), pbjson.EnumText(t.GetState()),
				output.Shorten(pbjson.EnumText(t.GetEndReason()), 24), output.Number(t.GetRounds()),
				output.Number(t.GetMutations()),
				t.GetBoundWorkItemId(), p.Time(t.GetStartedAt()),
			}
		})
}
