package work

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// ItemCommand returns `quartet work`.
func ItemCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{Use: "work", Short: "Work items: the objectives of agents"})
	c.AddCommand(createCommand(s), listCommand(s), getCommand(s), pickCommand(s), updateCommand(s), completeCommand(s),
		queueCommand(s), boardCommand(s), historyCommand(s))
	return c
}

// createCommand returns `quartet work create`.
func createCommand(s *session.Session) *cobra.Command {
	req := &workv1.CreateWorkItemRequest{}
	var status, plan string
	var list []string
	cmd := &cobra.Command{
		Use: "create AGENT OBJECTIVE", Short: "Create a work item", Args: input.Exactly("AGENT", "OBJECTIVE"),
		Long: `Create an open work item of an agent. It is queued and not in focus: the agent
picks it, at the latest when the scheduler wakes it for that.`,
		Example: `  quartet work create keeper "Release 1.4 is published"
  quartet work create keeper "Fix the flaky test" --todo "find it" --todo "fix it" --status ready --plan @plan.md`,
	}
	cmd.Flags().StringVar(&status, "status", "", "Status of the plan: draft, ready or needs_input (default draft)")
	input.EnumChoices[workv1.PlanStatus](cmd, "status")
	cmd.Flags().StringVar(&plan, "plan", "", `First text of the plan file; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringArrayVar(&list, "todo", nil,
		`Entry of the checklist; may be repeated; "[x] text" is done, "[>] text" in progress`)
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Objective, req.RequestId, req.TodoList = args[0], args[1], s.RequestID, input.Todos(list)
		var err error
		if req.PlanStatus, err = input.Enum[workv1.PlanStatus]("status", status); err != nil {
			return err
		}
		if req.Plan, err = input.Text(cmd, plan); err != nil {
			return err
		}
		resp, err := workv1.NewWorkServiceClient(conn).CreateWorkItem(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s\n", resp.GetWorkItem().GetWorkItemId())
			output.Warnings(cmd, resp.GetWarnings())
		})
	})
	return s.Mutation(cmd)
}

// listCommand returns `quartet work list`.
func listCommand(s *session.Session) *cobra.Command {
	var filter string
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's work items", Args: input.Exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet work list keeper --filter open",
	}
	cmd.Flags().StringVar(&filter, "filter", "", "Only these items: all, open, completed, current, queued, blocked, "+
		"waiting_for_operator or runnable (default all)")
	input.EnumChoices[workv1.WorkItemFilter](cmd, "filter")
	return session.List(s, cmd, workv1.NewWorkServiceClient, workv1.WorkServiceClient.ListWorkItems,
		func(args []string) (*workv1.ListWorkItemsRequest, error) {
			which, err := input.Enum[workv1.WorkItemFilter]("filter", filter)
			if err != nil {
				return nil, err
			}
			return &workv1.ListWorkItemsRequest{AgentId: args[0], Filter: which}, nil
		},
		(*workv1.ListWorkItemsResponse).GetWorkItems, "no work items",
		[]string{"", "ITEM", "STATE", "PLAN", "REV", "OBJECTIVE", "BLOCKED BY"},
		func(p *output.Printer, it *workv1.WorkItem) []string {
			return []string{
				output.Star(it.GetIsCurrent()), it.GetWorkItemId(),
				pbjson.EnumText(it.GetSchedulingState()), pbjson.EnumText(it.GetPlanStatus()),
				output.Number(it.GetRevision()), output.Flexible(it.GetObjective()), output.Flexible(it.GetBlockedBy()),
			}
		})
}

// getCommand returns `quartet work get`.
func getCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT ITEM", Short: "Show a work item", Args: input.Exactly("AGENT", "ITEM"),
		Example: "  quartet work get keeper wi_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, workv1.NewWorkServiceClient, workv1.WorkServiceClient.GetWorkItem,
			func(args []string) (*workv1.GetWorkItemRequest, error) {
				return &workv1.GetWorkItemRequest{AgentId: args[0], WorkItemId: args[1]}, nil
			},
			func(p *output.Printer, resp *workv1.GetWorkItemResponse) { writeItem(p, resp.GetWorkItem()) }),
	}
}

// planFile returns the path of a plan file, followed by its problem if it has one.
func planFile(plan *workv1.PlanArtifact) string {
	if plan.GetProblem() != "" {
		return plan.GetPath() + " (" + plan.GetProblem() + ")"
	}
	return plan.GetPath()
}

// writeItem writes all fields of an item, its todos and its waits.
func writeItem(p *output.Printer, it *workv1.WorkItem) {
	p.Fields(
		"item", it.GetWorkItemId(),
		"objective", terminal.Printable(it.GetObjective()),
		"state", output.StateWithReason(pbjson.EnumText(it.GetSchedulingState()), it.GetReasonCode()),
		"focus", output.Yes(it.GetIsCurrent()),
		"plan", pbjson.EnumText(it.GetPlanStatus())+output.Detail(planFile(it.GetPlanArtifact())),
		"blocked by", terminal.Printable(it.GetBlockedBy()),
		"triggered", output.Yes(it.GetHasTriggeredWaits()),
		"recheck", p.Time(it.GetRecheckAt()),
		"report", terminal.Printable(it.GetResultSummary()),
		"revision", output.Number(it.GetRevision()),
		"created", p.Time(it.GetCreatedAt()),
		"completed", p.Time(it.GetCompletedAt()),
	)
	if len(it.GetTodoList()) > 0 {
		p.Printf("\n")
	}
	for _, t := range it.GetTodoList() {
		box := map[workv1.TodoState]string{
			workv1.TodoState_TODO_STATE_COMPLETED: "[x]", workv1.TodoState_TODO_STATE_IN_PROGRESS: "[>]",
		}[t.GetState()]
		if box == "" {
			box = "[ ]"
		}
		p.Printf("%s %s\n", box, output.Shorten(t.GetText(), 100))
	}
	for _, w := range it.GetWaits() {
		p.Printf("\n%s %s: %s\n", pbjson.EnumText(w.GetMode()), w.GetWaitId(),
			output.Shorten(pbjson.EnumText(w.GetKind())+output.Detail(w.GetReason()), 90))
	}
}

// pickCommand returns `quartet work pick`.
func pickCommand(s *session.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "pick AGENT ITEM", Short: "Move the agent's focus to a work item", Args: input.Exactly("AGENT", "ITEM"),
		Example: `  quartet work pick keeper wi_01h455vb4pex5vsknk084sn02q --reason "the release is due today"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "The reason; required when the item that loses the focus is runnable")
	cmd.RunE = session.Call(s, workv1.NewWorkServiceClient, workv1.WorkServiceClient.PickWorkItem,
		func(args []string) (*workv1.PickWorkItemRequest, error) {
			return &workv1.PickWorkItemRequest{
				AgentId: args[0], WorkItemId: args[1], Reason: reason,
				RequestId: s.RequestID,
			}, nil
		},
		func(p *output.Printer, resp *workv1.PickWorkItemResponse) {
			p.Fields("focus", resp.GetWorkItem().GetWorkItemId()+" "+output.Shorten(resp.GetWorkItem().GetObjective(),
				60),
				"before", resp.GetPreviousWorkItem().GetWorkItemId(), "note", terminal.Printable(resp.GetBindingNote()))
			output.Warnings(cmd, resp.GetWarnings())
		})
	return s.Mutation(cmd)
}

// updateCommand returns `quartet work update`.
func updateCommand(s *session.Session) *cobra.Command {
	req := &workv1.UpdateWorkItemRequest{}
	var objective, status, blocker, recheck string
	var list []string
	var revision int64
	cmd := &cobra.Command{
		Use: "update AGENT ITEM", Short: "Change fields of an open work item", Args: input.Exactly("AGENT", "ITEM"),
		Long: `Change the given fields and keep the others. --todo replaces the complete
checklist. A blocker takes the focus from the item; clearing the blocker does not
return the focus.`,
		Example: `  quartet work update keeper wi_… --status ready
  quartet work update keeper wi_… --blocked-by "waiting for legal" --recheck 2d
  quartet work update keeper wi_… --unblock --if-revision 7
  quartet work update keeper wi_… --todo "[x] build" --todo "[>] test" --todo publish`,
	}
	f := cmd.Flags()
	f.StringVar(&objective, "objective", "", "The new objective")
	f.StringVar(&status, "status", "", "Status of the plan: draft, ready or needs_input")
	input.EnumChoices[workv1.PlanStatus](cmd, "status")
	f.StringVar(&blocker, "blocked-by", "", "Why the item cannot go on now")
	f.BoolVar(&req.ClearBlockedBy, "unblock", false, "Clear the blocker")
	f.StringArrayVar(&list, "todo", nil, `Entry of the new checklist; may be repeated; --todo "" alone clears it`)
	f.StringVar(&recheck, "recheck", "", "Remind the agent once, at this time or after this duration")
	f.BoolVar(&req.ClearRecheckAt, "no-recheck", false, "Clear the reminder that --recheck set")
	f.Int64Var(&revision, "if-revision", 0, "Only if the item has this revision")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.WorkItemId, req.RequestId = args[0], args[1], s.RequestID
		if f.Changed("objective") {
			req.Objective = &objective
		}
		if f.Changed("blocked-by") {
			req.BlockedBy = &blocker
		}
		if f.Changed("if-revision") {
			req.ExpectedRevision = &revision
		}
		if f.Changed("todo") {
			req.TodoList = &workv1.TodoList{}
			if len(list) > 1 || list[0] != "" {
				req.TodoList.Items = input.Todos(list)
			}
		}
		var err error
		if req.PlanStatus, err = input.Enum[workv1.PlanStatus]("status", status); err != nil {
			return err
		}
		if req.RecheckAt, err = input.Time("recheck", recheck, s.Zone()); err != nil {
			return err
		}
		resp, err := workv1.NewWorkServiceClient(conn).UpdateWorkItem(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			writeItem(p, resp.GetWorkItem())
			if resp.GetUnchanged() {
				p.Printf("nothing changed: the item has these values already\n")
			}
			output.Warnings(cmd, resp.GetWarnings())
		})
	})
	return s.Mutation(cmd)
}

// completeCommand returns `quartet work complete`.
func completeCommand(s *session.Session) *cobra.Command {
	var revision int64
	cmd := &cobra.Command{
		Use: "complete AGENT ITEM", Short: "Complete a work item", Args: input.Exactly("AGENT", "ITEM"),
		Long:    "Complete a work item. A completed item cannot be opened again; its waits are cancelled.",
		Example: "  quartet work complete keeper wi_01h455vb4pex5vsknk084sn02q",
	}
	cmd.Flags().Int64Var(&revision, "if-revision", 0, "Only if the item has this revision")
	cmd.RunE = session.Call(s, workv1.NewWorkServiceClient, workv1.WorkServiceClient.CompleteWorkItem,
		func(args []string) (*workv1.CompleteWorkItemRequest, error) {
			req := &workv1.CompleteWorkItemRequest{AgentId: args[0], WorkItemId: args[1], RequestId: s.RequestID}
			if cmd.Flags().Changed("if-revision") {
				req.ExpectedRevision = &revision
			}
			return req, nil
		},
		func(p *output.Printer, resp *workv1.CompleteWorkItemResponse) {
			note := ""
			if resp.GetAlreadyCompleted() {
				note = " (it was already)"
			}
			p.Printf("completed %s%s\n", resp.GetWorkItem().GetWorkItemId(), note)
			output.Warnings(cmd, resp.GetWarnings())
		})
	return s.Mutation(cmd)
}

// queueCommand returns `quartet work queue`.
func queueCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "queue AGENT", Short: "Show the item in focus and the candidates, as the scheduler ranks them",
		Args:    input.Exactly("AGENT"),
		Example: "  quartet work queue keeper",
		RunE: session.Call(s, workv1.NewWorkServiceClient, workv1.WorkServiceClient.GetWorkQueue,
			func(args []string) (*workv1.GetWorkQueueRequest, error) {
				return &workv1.GetWorkQueueRequest{AgentId: args[0], OmitPlans: true}, nil
			},
			func(p *output.Printer, resp *workv1.GetWorkQueueResponse) {
				var rows [][]string
				add := func(class string, items ...*workv1.WorkItem) {
					for _, it := range items {
						if it != nil {
							rows = append(rows,
								[]string{
									class, it.GetWorkItemId(), pbjson.EnumText(it.GetSchedulingState()),
									output.Flexible(it.GetObjective()), output.Flexible(it.GetBlockedBy()),
								})
						}
					}
				}
				add("focus", resp.GetCurrent())
				add("triggered", resp.GetTriggeredBlocked()...)
				add("queued", resp.GetQueuedRunnable()...)
				add("operator", resp.GetWaitingForOperator()...)
				add("blocked", resp.GetBlocked()...)
				add("completed", resp.GetCompletedRecent()...)
				p.Table("no work items", []string{"CLASS", "ITEM", "STATE", "OBJECTIVE", "BLOCKED BY"}, rows)
				n := resp.GetCounts()
				p.Printf("\n%d open, %d queued, %d triggered, %d for an operator, %d blocked, %d completed\n",
					n.GetOpen(), n.GetQueuedRunnable(), n.GetTriggeredBlocked(), n.GetWaitingForOperator(),
					n.GetBlocked(), n.GetCompleted())
			}),
	}
}
