package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func (ss *session) workCommand() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "work", Short: "Work items: what is being achieved"})
	c.AddCommand(ss.workCreate(), ss.workList(), ss.workGet(), ss.workPick(), ss.workUpdate(), ss.workComplete(), ss.workQueue(), ss.workBoard(), ss.workHistory())
	return c
}

func (ss *session) workCreate() *cobra.Command {
	req := &workv1.CreateWorkItemRequest{}
	var status, plan string
	var list []string
	cmd := &cobra.Command{
		Use: "create AGENT OBJECTIVE", Short: "Make a work item", Args: exactly("AGENT", "OBJECTIVE"),
		Long: `Make an open work item of an agent. It is queued, not focused: the agent picks
it, or the scheduler reminds it to.`,
		Example: `  quartet work create keeper "Release 1.4 is published"
  quartet work create keeper "Fix the flaky test" --todo "find it" --todo "fix it" --status ready --plan @plan.md`,
	}
	cmd.Flags().StringVar(&status, "status", "", "Of the plan: draft, ready or needs_input (default draft)")
	cmd.Flags().StringVar(&plan, "plan", "", `First text of the plan file; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringArrayVar(&list, "todo", nil, `Entry of the checklist, may be repeated; "[x] text" is done, "[>] text" in progress`)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Objective, req.RequestId, req.TodoList = args[0], args[1], ss.requestID, todos(list)
		var err error
		if req.PlanStatus, err = enum[workv1.PlanStatus]("status", status); err != nil {
			return err
		}
		if req.Plan, err = content(cmd, plan); err != nil {
			return err
		}
		resp, err := workv1.NewWorkServiceClient(conn).CreateWorkItem(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("%s\n", resp.GetWorkItem().GetWorkItemId())
			warn(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

// warn goes to stderr: advice is no answer.
func warn(cmd *cobra.Command, warnings []*workv1.Warning) {
	for _, w := range warnings {
		cmd.PrintErrf("warning: %s: %s\n", short(w.GetKind()), printable(w.GetMessage()))
	}
}

func (ss *session) workList() *cobra.Command {
	var filter string
	var pages paging
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's work items", Args: exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet work list keeper --filter open",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			which, err := enum[workv1.WorkItemFilter]("filter", filter)
			if err != nil {
				return err
			}
			resp, err := workv1.NewWorkServiceClient(conn).ListWorkItems(cmd.Context(), &workv1.ListWorkItemsRequest{
				AgentId: args[0], Filter: which, PageSize: pages.size, PageToken: pages.token,
			})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, it := range resp.GetWorkItems() {
					rows = append(rows, []string{mark(it.GetIsCurrent()), it.GetWorkItemId(), short(it.GetSchedulingState()), short(it.GetPlanStatus()),
						number(it.GetRevision()), brief(it.GetObjective(), 60), brief(it.GetBlockedBy(), 40)})
				}
				p.table("no work items", []string{"", "ITEM", "STATE", "PLAN", "REV", "OBJECTIVE", "BLOCKED BY"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().StringVar(&filter, "filter", "", "all, open, completed, current, queued, blocked, waiting_for_operator or runnable (default all)")
	pages.flags(cmd)
	return cmd
}

func (ss *session) workGet() *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT ITEM", Short: "Show a work item", Args: exactly("AGENT", "ITEM"),
		Example: "  quartet work get keeper wi_01h455vb4pex5vsknk084sn02q",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := workv1.NewWorkServiceClient(conn).GetWorkItem(cmd.Context(), &workv1.GetWorkItemRequest{AgentId: args[0], WorkItemId: args[1]})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) { item(p, resp.GetWorkItem()) })
		}),
	}
}

func item(p *printer, it *workv1.WorkItem) {
	p.fields(
		"item", it.GetWorkItemId(),
		"objective", printable(it.GetObjective()),
		"state", ruled(short(it.GetSchedulingState()), it.GetReasonCode()),
		"focus", yes(it.GetIsCurrent()),
		"plan", short(it.GetPlanStatus())+because(it.GetPlanArtifact().GetPath()),
		"blocked by", printable(it.GetBlockedBy()),
		"triggered", yes(it.GetHasTriggeredWaits()),
		"recheck", when(it.GetRecheckAt()),
		"report", printable(it.GetResultSummary()),
		"revision", number(it.GetRevision()),
		"created", when(it.GetCreatedAt()),
		"completed", when(it.GetCompletedAt()),
	)
	if len(it.GetTodoList()) > 0 {
		p.printf("\n")
	}
	for _, t := range it.GetTodoList() {
		box := map[workv1.TodoState]string{
			workv1.TodoState_TODO_STATE_COMPLETED: "[x]", workv1.TodoState_TODO_STATE_IN_PROGRESS: "[>]",
		}[t.GetState()]
		if box == "" {
			box = "[ ]"
		}
		p.printf("%s %s\n", box, brief(t.GetText(), 100))
	}
	for _, w := range it.GetWaits() {
		p.printf("\n%s %s: %s\n", short(w.GetMode()), w.GetWaitId(), brief(short(w.GetKind())+because(w.GetReason()), 90))
	}
}

func (ss *session) workPick() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "pick AGENT ITEM", Short: "Move the agent's focus to a work item", Args: exactly("AGENT", "ITEM"),
		Example: `  quartet work pick keeper wi_01h455vb4pex5vsknk084sn02q --reason "the release is due today"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why; wanted when a runnable item is left")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := workv1.NewWorkServiceClient(conn).PickWorkItem(cmd.Context(), &workv1.PickWorkItemRequest{
			AgentId: args[0], WorkItemId: args[1], Reason: reason, RequestId: ss.requestID,
		})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.fields("focus", resp.GetWorkItem().GetWorkItemId()+" "+brief(resp.GetWorkItem().GetObjective(), 60),
				"before", resp.GetPreviousWorkItem().GetWorkItemId(), "note", printable(resp.GetBindingNote()))
			warn(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) workUpdate() *cobra.Command {
	req := &workv1.UpdateWorkItemRequest{}
	var objective, status, blocker, recheck string
	var list []string
	var revision int64
	cmd := &cobra.Command{
		Use: "update AGENT ITEM", Short: "Write fields of an open work item", Args: exactly("AGENT", "ITEM"),
		Long: `Write what is given and leave the rest. --todo replaces the whole checklist. A
blocker takes the focus from the item; clearing it does not give it back.`,
		Example: `  quartet work update keeper wi_… --status ready
  quartet work update keeper wi_… --blocked-by "waiting for legal" --recheck 2d
  quartet work update keeper wi_… --unblock --if-revision 7
  quartet work update keeper wi_… --todo "[x] build" --todo "[>] test" --todo publish`,
	}
	f := cmd.Flags()
	f.StringVar(&objective, "objective", "", "The new objective")
	f.StringVar(&status, "status", "", "Of the plan: draft, ready or needs_input")
	f.StringVar(&blocker, "blocked-by", "", "Why it cannot be advanced now")
	f.BoolVar(&req.ClearBlockedBy, "unblock", false, "Clear the blocker")
	f.StringArrayVar(&list, "todo", nil, `Entry of the new checklist, may be repeated; --todo "" alone clears it`)
	f.StringVar(&recheck, "recheck", "", "Remind the agent once, at a time or after a duration")
	f.Int64Var(&revision, "if-revision", 0, "Only if the item stands at this revision")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.WorkItemId, req.RequestId = args[0], args[1], ss.requestID
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
				req.TodoList.Items = todos(list)
			}
		}
		var err error
		if req.PlanStatus, err = enum[workv1.PlanStatus]("status", status); err != nil {
			return err
		}
		if req.RecheckAt, err = point("recheck", recheck); err != nil {
			return err
		}
		resp, err := workv1.NewWorkServiceClient(conn).UpdateWorkItem(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			item(p, resp.GetWorkItem())
			warn(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) workComplete() *cobra.Command {
	var revision int64
	cmd := &cobra.Command{
		Use: "complete AGENT ITEM", Short: "End a work item", Args: exactly("AGENT", "ITEM"),
		Long:    "End a work item. There is no way back; what it waited for is given up.",
		Example: "  quartet work complete keeper wi_01h455vb4pex5vsknk084sn02q",
	}
	cmd.Flags().Int64Var(&revision, "if-revision", 0, "Only if the item stands at this revision")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req := &workv1.CompleteWorkItemRequest{AgentId: args[0], WorkItemId: args[1], RequestId: ss.requestID}
		if cmd.Flags().Changed("if-revision") {
			req.ExpectedRevision = &revision
		}
		resp, err := workv1.NewWorkServiceClient(conn).CompleteWorkItem(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			note := ""
			if resp.GetAlreadyCompleted() {
				note = " (it was already)"
			}
			p.printf("completed %s%s\n", resp.GetWorkItem().GetWorkItemId(), note)
			warn(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) workQueue() *cobra.Command {
	return &cobra.Command{
		Use: "queue AGENT", Short: "Show focus and candidates, as the scheduler sees them", Args: exactly("AGENT"),
		Example: "  quartet work queue keeper",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := workv1.NewWorkServiceClient(conn).GetWorkQueue(cmd.Context(), &workv1.GetWorkQueueRequest{AgentId: args[0], OmitPlans: true})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				add := func(class string, items ...*workv1.WorkItem) {
					for _, it := range items {
						if it != nil {
							rows = append(rows, []string{class, it.GetWorkItemId(), short(it.GetSchedulingState()), brief(it.GetObjective(), 60), brief(it.GetBlockedBy(), 40)})
						}
					}
				}
				add("focus", resp.GetCurrent())
				add("triggered", resp.GetTriggeredBlocked()...)
				add("queued", resp.GetQueuedRunnable()...)
				add("operator", resp.GetWaitingForOperator()...)
				add("blocked", resp.GetBlocked()...)
				add("completed", resp.GetCompletedRecent()...)
				p.table("no work items", []string{"CLASS", "ITEM", "STATE", "OBJECTIVE", "BLOCKED BY"}, rows)
				n := resp.GetCounts()
				p.printf("\n%d open, %d queued, %d triggered, %d for an operator, %d blocked, %d completed\n",
					n.GetOpen(), n.GetQueuedRunnable(), n.GetTriggeredBlocked(), n.GetWaitingForOperator(), n.GetBlocked(), n.GetCompleted())
			})
		}),
	}
}
