package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

func (ss *session) boardDispatch() *cobra.Command {
	req := &boardv1.DispatchWorkerRequest{}
	var steps []string
	var timeout, wait string
	cmd := &cobra.Command{
		Use: "dispatch SESSION/BOARD", Short: "Send one worker to do one step", Args: exactly("SESSION/BOARD"),
		Long: `Start one run of a worker. It claims one of the pool's ready steps, or one of
those that --step names, and works it. A pool without a free worker refuses
(WORKER_POOL_BUSY): there is no hidden queue. --wait waits for the end, at most 55s;
"quartet board runs" shows it afterwards.`,
		Example: "  quartet board dispatch keeper/build --pool go --wait 30s\n  quartet board dispatch keeper/build --step test -i \"mind the flaky one\"",
	}
	fl := cmd.Flags()
	fl.StringVar(&req.WorkerPoolId, "pool", "", "The pool (default: the board's)")
	fl.StringVar(&req.WorkerId, "worker", "", "This worker of it (default: any that is free)")
	fl.StringSliceVar(&steps, "step", nil, "Only this step; may be repeated")
	fl.StringVarP(&req.Instruction, "instruction", "i", "", "What the worker is told")
	fl.StringVar(&timeout, "timeout", "", "When it is stopped, such as 30m (default 1h)")
	fl.StringVar(&wait, "wait", "", "How long to wait for its end (default: not at all)")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId, req.RequestId, req.AllowedStepIds = sessionID, boardID, ss.requestID, stepList(steps)
		var err error
		if req.Timeout, err = span("timeout", timeout); err != nil {
			return err
		}
		if req.Wait, err = span("wait", wait); err != nil {
			return err
		}
		resp, err := c.DispatchWorker(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { runLine(p, resp.GetRun()) })
	})
	return ss.mutates(cmd)
}

func stepList(steps []string) *boardv1.StepList {
	if len(steps) == 0 {
		return nil
	}
	return &boardv1.StepList{StepIds: steps}
}

func runLine(p *printer, r *boardv1.WorkerRun) {
	p.printf("%s %s", r.GetRunId(), short(r.GetStatus()))
	switch {
	case r.GetNoStepClaimed():
		p.printf(", found nothing to claim")
	case r.GetClaimedStepId() != "":
		p.printf(", step %s", r.GetClaimedStepId())
		if r.GetStepStatus() != boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
			p.printf(" %s", short(r.GetStepStatus()))
		}
	}
	if r.GetWorkerId() != "" {
		p.printf(", by %s", r.GetWorkerId())
	}
	p.printf("\n")
	if text := joined(r.GetStepResultSummary(), r.GetWorkerResult(), short(r.GetEndReason())); text != "" {
		p.printf("%s\n", printable(text))
	}
}

func (ss *session) boardOpen() *cobra.Command {
	req := &boardv1.OpenStandingDispatchRequest{}
	var steps []string
	cmd := &cobra.Command{
		Use: "open SESSION/BOARD POOL", Short: "Let a pool's workers take steps until it is closed", Args: exactly("SESSION/BOARD", "POOL"),
		Long: `A standing dispatch: each worker of the pool that is free takes the next ready
step, in a run of its own, until "quartet board close". Nobody claims a step without
a dispatch.`,
		Example: "  quartet board open keeper/build go --parallel 4",
	}
	cmd.Flags().Int32Var(&req.MaxParallel, "parallel", 0, "How many steps at once (default 1000)")
	cmd.Flags().StringSliceVar(&steps, "step", nil, "Only this step; may be repeated")
	cmd.Flags().StringVarP(&req.Instruction, "instruction", "i", "", "What the workers are told")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		req.SessionId, req.BoardId, req.RequestId, req.WorkerPoolId, req.AllowedStepIds = sessionID, boardID, ss.requestID, args[0], stepList(steps)
		resp, err := c.OpenStandingDispatch(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			d := resp.GetDispatch()
			p.printf("%s: pool %s takes up to %d steps at once; quartet board close %s/%s %s ends it\n",
				d.GetDispatchId(), d.GetWorkerPoolId(), d.GetMaxParallel(), sessionID, boardID, d.GetDispatchId())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) boardClose() *cobra.Command {
	cmd := &cobra.Command{
		Use: "close SESSION/BOARD DISPATCH", Short: "End a standing dispatch; its runs go on", Args: exactly("SESSION/BOARD", "DISPATCH"),
		Example: "  quartet board close keeper/build dsp_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		resp, err := c.CloseStandingDispatch(cmd.Context(), &boardv1.CloseStandingDispatchRequest{
			SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, DispatchId: args[0],
		})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("%s closed, %d runs go on\n", resp.GetDispatch().GetDispatchId(), resp.GetDispatch().GetRunning())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) boardRuns() *cobra.Command {
	req := &boardv1.ListWorkerRunsRequest{}
	cmd := &cobra.Command{
		Use: "runs SESSION/BOARD", Short: "List the runs of workers on a board", Args: exactly("SESSION/BOARD"),
		Example: "  quartet board runs keeper/build --running",
	}
	cmd.Flags().BoolVar(&req.RunningOnly, "running", false, "Only those under way")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "How many (default 50)")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.ListWorkerRuns(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { runTable(p, resp.GetRuns()) })
	})
	return cmd
}

func runTable(p *printer, runs []*boardv1.WorkerRun) {
	var rows [][]string
	for _, r := range runs {
		step := r.GetClaimedStepId()
		if r.GetNoStepClaimed() {
			step = "none"
		}
		stands := ""
		if r.GetStepStatus() != boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
			stands = short(r.GetStepStatus())
		}
		rows = append(rows, []string{r.GetRunId(), short(r.GetStatus()), r.GetWorkerId(), step, stands, when(r.GetDispatchedAt()), printable(brief(joined(r.GetStepResultSummary(), short(r.GetEndReason())), 60))})
	}
	p.table("no runs", []string{"RUN", "STATUS", "WORKER", "STEP", "STANDS", "DISPATCHED", "RESULT"}, rows)
}

func (ss *session) boardCancelRun() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel-run SESSION/BOARD RUN", Short: "Stop one worker's run", Args: exactly("SESSION/BOARD", "RUN"),
		Example: "  quartet board cancel-run keeper/build run_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		resp, err := c.CancelWorkerRun(cmd.Context(), &boardv1.CancelWorkerRunRequest{SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, RunId: args[0]})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { runLine(p, resp.GetRun()) })
	})
	return ss.mutates(cmd)
}

func (ss *session) boardWorkers() *cobra.Command {
	req := &boardv1.ListWorkersRequest{}
	cmd := &cobra.Command{
		Use: "workers", Short: "List the workers that are connected", Args: none, Example: "  quartet board workers --pool go",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			resp, err := boardv1.NewBoardServiceClient(conn).ListWorkers(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, w := range resp.GetWorkers() {
					rows = append(rows, []string{
						w.GetWorkerId(), strings.Join(w.GetWorkerPoolIds(), ","), fmt.Sprintf("%d of %d", len(w.GetRunIds()), w.GetCapacity()), when(w.GetConnectedAt()),
					})
				}
				p.table("no workers are connected", []string{"WORKER", "POOLS", "BUSY", "SINCE"}, rows)
			})
		}),
	}
	cmd.Flags().StringVar(&req.WorkerPoolId, "pool", "", "Only of this pool")
	return cmd
}

func (ss *session) boardInspect() *cobra.Command {
	req := &boardv1.InspectBoardRequest{}
	cmd := &cobra.Command{
		Use: "inspect SESSION/BOARD", Short: "Show what happened on a board, and what its workers were given", Args: exactly("SESSION/BOARD"),
		Example: "  quartet board inspect keeper/build --lines 20",
	}
	cmd.Flags().Int32Var(&req.Timeline, "lines", 0, "How many of the newest lines of its WAL (default 50)")
	cmd.Flags().StringVar(&req.WalName, "wal", "", "The log, where several boards of the name have ended")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.InspectBoard(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			drawBoard(p, resp.GetBoard(), ss.now())
			p.printf("\n%s\n", p.paint(bold, "RUNS"))
			runTable(p, resp.GetRuns())
			for _, d := range resp.GetDispatched() {
				if d.GetUpdatedAfterDispatch() {
					p.printf("%s: step %s was changed after it was given out\n", d.GetRunId(), d.GetNow().GetStepId())
				}
			}
			for _, d := range resp.GetDispatches() {
				p.printf("%s: pool %s, up to %d at once, %d under way\n", d.GetDispatchId(), d.GetWorkerPoolId(), d.GetMaxParallel(), d.GetRunning())
			}
			p.printf("\n%s\n", p.paint(bold, "TIMELINE"))
			for _, line := range resp.GetTimeline() {
				p.printf("%s\n", printable(brief(line, p.columns())))
			}
		})
	})
	return cmd
}

func (ss *session) boardTemplate() *cobra.Command {
	return &cobra.Command{
		Use: "template", Short: "Show how to write a good board", Args: none, Example: "  quartet board template",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			resp, err := boardv1.NewBoardServiceClient(conn).GetTemplate(cmd.Context(), &boardv1.GetTemplateRequest{})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) { p.printf("%s\n", strings.TrimRight(resp.GetText(), "\n")) })
		}),
	}
}

func (ss *session) boardSummary() *cobra.Command {
	req := &boardv1.GetSummaryRequest{}
	cmd := &cobra.Command{
		Use: "summary SESSION", Short: "Show what a model is told of a session's boards", Args: exactly("SESSION"), Example: "  quartet board summary keeper --budget 600",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.SessionId = args[0]
			resp, err := boardv1.NewBoardServiceClient(conn).GetSummary(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				p.printf("%s\n", cmp.Or(strings.TrimRight(resp.GetText(), "\n"), "no active boards"))
			})
		}),
	}
	cmd.Flags().Int32Var(&req.TokenBudget, "budget", 0, "In tokens (default 1200)")
	return cmd
}
