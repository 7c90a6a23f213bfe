package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func (ss *session) agentCommand() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "agent", Short: "Agents: who thinks", Aliases: []string{"agents"}})
	c.AddCommand(ss.agentSpawn(), ss.agentGet(), ss.agentList(), ss.agentSay(), ss.agentMessages(), ss.agentTurns(), ss.agentRounds(), ss.agentBriefs(), ss.agentChildren(),
		ss.agentContext(), ss.agentTools(),
		ss.agentPause(), ss.agentResume(), ss.agentStop(), ss.agentStart(), ss.agentAbort(), ss.agentDelete())
	return c
}

func (ss *session) agentSpawn() *cobra.Command {
	var message, parent, context, mode, root string
	cmd := &cobra.Command{
		Use: "spawn [AGENT]", Short: "Make an agent",
		Long: `Make an agent. With a name it is a public one that operators talk to. Without,
and with --parent, it is a private child with an id of its own; its first
message is then required, and its task is printed too: by that the parent
follows up, reads the result and stops it.`,
		Example: `  quartet agent spawn keeper
  quartet agent spawn keeper --message "You keep the releases" --workspace /srv/repo
  quartet agent spawn --parent keeper --context fork --message "Check the changelog"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("one AGENT at most")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&message, "message", "m", "", `Its first message; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringVar(&parent, "parent", "", "The agent that it is a private child of")
	cmd.Flags().StringVar(&context, "context", "", "What it starts from: fresh or fork")
	cmd.Flags().StringVar(&mode, "workspace-mode", "", "Where it works: inherit")
	cmd.Flags().StringVar(&root, "workspace", "", "Directory where its commands run")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req := &agentv1.SpawnAgentRequest{RequestId: ss.requestID, ParentAgentId: parent, WorkspaceRoot: root, Preset: agentv1.Preset_PRESET_PRIVATE_CHILD}
		if len(args) == 1 {
			req.AgentId, req.Preset = args[0], agentv1.Preset_PRESET_PUBLIC_NAMED
		} else if parent == "" {
			return usage("AGENT is missing (or --parent, for a private child)")
		}
		var err error
		if req.InitialMessage, err = content(cmd, message); err != nil {
			return err
		}
		if req.Context, err = enum[agentv1.Context]("context", context); err != nil {
			return err
		}
		if req.WorkspaceMode, err = enum[agentv1.WorkspaceMode]("workspace-mode", mode); err != nil {
			return err
		}
		resp, err := agentv1.NewAgentServiceClient(conn).SpawnAgent(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("%s\n", resp.GetAgentId())
			if resp.GetTaskId() != "" {
				p.printf("%s\n", resp.GetTaskId())
			}
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) agentGet() *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT", Short: "Show an agent: what it is doing and why, its focus, its lane, its children", Args: exactly("AGENT"), Aliases: []string{"show"},
		Example: "  quartet agent get keeper\n  quartet agent show keeper -o json",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := agentv1.NewAgentServiceClient(conn).GetAgent(cmd.Context(), &agentv1.GetAgentRequest{AgentId: args[0]})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				a := resp.GetAgent()
				fields := []string{
					"agent", a.GetAgentId(),
					"posture", printable(short(a.GetPosture()) + because(a.GetPostureReason())),
					"control", controlOf(a),
					"focus", a.GetCurrentWorkItemId(),
					"lane", laneOf(a.GetLane()),
					"run", a.GetCurrentRunId(),
					"visibility", short(a.GetVisibility()),
					"parent", a.GetLineageParentAgentId(),
					"supervisor", a.GetSupervisorAgentId(),
					"workspace", printable(a.GetWorkspaceRoot()),
					"lifecycle", short(a.GetLifecycle()),
					"revision", number(a.GetRevision()),
					"created", when(a.GetCreatedAt()),
				}
				for _, c := range resp.GetChildren() {
					fields = append(fields, "child", c.GetAgentId()+" "+short(c.GetLifecycle())+" "+short(c.GetControl()))
				}
				p.fields(fields...)
			})
		}),
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

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
			text += number(n.count) + " " + n.name
		}
	}
	return text
}

func (ss *session) agentList() *cobra.Command {
	req := &agentv1.ListAgentsRequest{}
	var pages paging
	cmd := &cobra.Command{
		Use: "list", Short: "List agents", Args: none, Aliases: []string{"ls"},
		Example: "  quartet agent list\n  quartet agent list --private --parent keeper",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			req.PageSize, req.PageToken = pages.size, pages.token
			resp, err := agentv1.NewAgentServiceClient(conn).ListAgents(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, a := range resp.GetAgents() {
					rows = append(rows, []string{a.GetAgentId(), short(a.GetPosture()), short(a.GetControl()), number(a.GetLane().GetQueued()),
						a.GetCurrentWorkItemId(), brief(a.GetPostureReason(), 60)})
				}
				p.table("no agents", []string{"AGENT", "POSTURE", "CONTROL", "QUEUED", "FOCUS", "WHY"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeDeleted, "deleted", false, "Also deleted agents")
	cmd.Flags().BoolVar(&req.IncludePrivate, "private", false, "Also private agents")
	cmd.Flags().StringVar(&req.LineageParentAgentId, "parent", "", "Only those that this agent made")
	pages.flags(cmd)
	return cmd
}

func (ss *session) agentSay() *cobra.Command {
	req := &agentv1.EnqueueMessageRequest{}
	var kind, priority string
	var now bool
	cmd := &cobra.Command{
		Use: "say AGENT TEXT", Short: "Put a message into an agent's lane", Args: exactly("AGENT", "TEXT"),
		Long: `Put a message into an agent's lane. It is on disk when the command answers.
--interject reaches a running turn at its next safe point, between two replies of
the model; if the turn ends first, it is the first thing of the next one.`,
		Example: `  quartet agent say keeper "Prepare release 1.4"
  quartet agent say keeper --interject "Stop, wrong branch"
  git diff | quartet agent say keeper -`,
	}
	cmd.Flags().StringVar(&priority, "priority", "", "interject, next, normal or background (default normal)")
	cmd.Flags().BoolVar(&now, "interject", false, "The same as --priority interject")
	cmd.Flags().StringVar(&kind, "kind", "", "operator_prompt, channel_event, webhook_event or callback_event (default by credential)")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item it is about")
	cmd.Flags().StringVar(&req.CorrelationId, "correlation", "", "Your own thread id")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.RequestId = args[0], ss.requestID
		var err error
		if req.Text, err = content(cmd, args[1]); err != nil {
			return err
		}
		if now {
			if priority != "" && priority != "interject" {
				return usage("--interject and --priority " + priority + " contradict each other")
			}
			priority = "interject"
		}
		if req.Priority, err = enum[agentv1.Priority]("priority", priority); err != nil {
			return err
		}
		if req.Kind, err = enum[agentv1.MessageKind]("kind", kind); err != nil {
			return err
		}
		resp, err := agentv1.NewAgentServiceClient(conn).EnqueueMessage(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { p.printf("%s\n", resp.GetMessageId()) })
	})
	return ss.mutates(cmd)
}

func (ss *session) agentMessages() *cobra.Command {
	var state string
	var pages paging
	cmd := &cobra.Command{
		Use: "messages AGENT", Short: "List an agent's messages", Args: exactly("AGENT"),
		Example: "  quartet agent messages keeper --state quarantined",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			only, err := enum[agentv1.MessageState]("state", state)
			if err != nil {
				return err
			}
			resp, err := agentv1.NewAgentServiceClient(conn).ListMessages(cmd.Context(), &agentv1.ListMessagesRequest{
				AgentId: args[0], State: only, PageSize: pages.size, PageToken: pages.token,
			})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, m := range resp.GetMessages() {
					rows = append(rows, []string{m.GetMessageId(), short(m.GetState()), short(m.GetKind()), short(m.GetPriority()), when(m.GetCreatedAt()), brief(m.GetText(), 60)})
				}
				p.table("no messages", []string{"MESSAGE", "STATE", "KIND", "PRIORITY", "QUEUED", "TEXT"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().StringVar(&state, "state", "", "Only those queued, dequeued, processed, interjected, aborted, dropped or quarantined")
	pages.flags(cmd)
	return cmd
}

func (ss *session) agentTurns() *cobra.Command {
	var pages paging
	cmd := &cobra.Command{
		Use: "turns AGENT", Short: "List an agent's turns, newest first", Args: exactly("AGENT"),
		Example: "  quartet agent turns keeper --page-size 5",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := agentv1.NewAgentServiceClient(conn).ListTurns(cmd.Context(), &agentv1.ListTurnsRequest{
				AgentId: args[0], PageSize: pages.size, PageToken: pages.token,
			})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, t := range resp.GetTurns() {
					rows = append(rows, []string{t.GetTurnId(), short(t.GetState()), brief(short(t.GetEndReason()), 24), number(t.GetRounds()), number(t.GetMutations()),
						t.GetBoundWorkItemId(), when(t.GetStartedAt())})
				}
				p.table("no turns", []string{"TURN", "STATE", "END", "ROUNDS", "CHANGES", "ITEM", "STARTED"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	pages.flags(cmd)
	return cmd
}
