package boards

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

func dispatchCommand(s *session.Session) *cobra.Command {
	req := &boardv1.DispatchWorkerRequest{}
	var steps []string
	var timeout, wait string
	cmd := &cobra.Command{
		Use: "dispatch SESSION/BOARD", Short: "Send one worker to do one step", Args: input.Exactly("SESSION/BOARD"),
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
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId, req.RequestId, req.AllowedStepIds = sessionID, boardID, s.RequestID, stepList(steps)
		var err error
		if req.Timeout, err = input.Duration("timeout", timeout); err != nil {
			return err
		}
		if req.Wait, err = input.Duration("wait", wait); err != nil {
			return err
		}
		resp, err := c.DispatchWorker(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { runLine(p, resp.GetRun()) })
	})
	return s.Mutation(cmd)
}

func stepList(steps []string) *boardv1.StepList {
	if len(steps) == 0 {
		return nil
	}
	return &boardv1.StepList{StepIds: steps}
}

func runLine(p *output.Printer, r *boardv1.WorkerRun) {
	p.Printf("%s %s", r.GetRunId(), pbjson.EnumText(r.GetStatus()))
	switch {
	case r.GetNoStepClaimed():
		p.Printf(", found nothing to claim")
	case r.GetClaimedStepId() != "":
		p.Printf(", step %s", r.GetClaimedStepId())
		if r.GetStepStatus() != boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
			p.Printf(" %s", pbjson.EnumText(r.GetStepStatus()))
		}
	}
	if r.GetWorkerId() != "" {
		p.Printf(", by %s", r.GetWorkerId())
	}
	p.Printf("\n")
	if text := joined(r.GetStepResultSummary(), r.GetWorkerResult(), r.GetEndReason()); text != "" {
		p.Printf("%s\n", output.Printable(text))
	}
}

func openCommand(s *session.Session) *cobra.Command {
	req := &boardv1.OpenStandingDispatchRequest{}
	var steps []string
	cmd := &cobra.Command{
		Use: "open SESSION/BOARD POOL", Short: "Let a pool's workers take steps until it is closed", Args: input.Exactly("SESSION/BOARD", "POOL"),
		Long: `A standing dispatch: each worker of the pool that is free takes the next ready
step, in a run of its own, until "quartet board close". Nobody claims a step without
a dispatch.`,
		Example: "  quartet board open keeper/build go --parallel 4",
	}
	cmd.Flags().Int32Var(&req.MaxParallel, "parallel", 0, "How many steps at once (default 1000)")
	cmd.Flags().StringSliceVar(&steps, "step", nil, "Only this step; may be repeated")
	cmd.Flags().StringVarP(&req.Instruction, "instruction", "i", "", "What the workers are told")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		req.SessionId, req.BoardId, req.RequestId, req.WorkerPoolId, req.AllowedStepIds = sessionID, boardID, s.RequestID, args[0], stepList(steps)
		resp, err := c.OpenStandingDispatch(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			d := resp.GetDispatch()
			p.Printf("%s: pool %s takes up to %d steps at once; quartet board close %s/%s %s ends it\n",
				d.GetDispatchId(), d.GetWorkerPoolId(), d.GetMaxParallel(), sessionID, boardID, d.GetDispatchId())
		})
	})
	return s.Mutation(cmd)
}

func closeCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "close SESSION/BOARD DISPATCH", Short: "End a standing dispatch; its runs go on", Args: input.Exactly("SESSION/BOARD", "DISPATCH"),
		Example: "  quartet board close keeper/build dsp_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		resp, err := c.CloseStandingDispatch(cmd.Context(), &boardv1.CloseStandingDispatchRequest{
			SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, DispatchId: args[0],
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s closed, %d runs go on\n", resp.GetDispatch().GetDispatchId(), resp.GetDispatch().GetRunning())
		})
	})
	return s.Mutation(cmd)
}

func runsCommand(s *session.Session) *cobra.Command {
	req := &boardv1.ListWorkerRunsRequest{}
	cmd := &cobra.Command{
		Use: "runs SESSION/BOARD", Short: "List the runs of workers on a board", Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board runs keeper/build --running",
	}
	cmd.Flags().BoolVar(&req.RunningOnly, "running", false, "Only those under way")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "How many (default 50)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.ListWorkerRuns(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { runTable(p, resp.GetRuns()) })
	})
	return cmd
}

func runTable(p *output.Printer, runs []*boardv1.WorkerRun) {
	var rows [][]string
	for _, r := range runs {
		step := r.GetClaimedStepId()
		if r.GetNoStepClaimed() {
			step = "none"
		}
		stands := ""
		if r.GetStepStatus() != boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
			stands = pbjson.EnumText(r.GetStepStatus())
		}
		rows = append(rows, []string{r.GetRunId(), pbjson.EnumText(r.GetStatus()), r.GetWorkerId(), step, stands, output.Time(r.GetDispatchedAt()), output.Printable(output.Shorten(joined(r.GetStepResultSummary(), r.GetEndReason()), 60))})
	}
	p.Table("no runs", []string{"RUN", "STATUS", "WORKER", "STEP", "STANDS", "DISPATCHED", "RESULT"}, rows)
}

func cancelRunCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel-run SESSION/BOARD RUN", Short: "Stop one worker's run", Args: input.Exactly("SESSION/BOARD", "RUN"),
		Example: "  quartet board cancel-run keeper/build run_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		resp, err := c.CancelWorkerRun(cmd.Context(), &boardv1.CancelWorkerRunRequest{SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, RunId: args[0]})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { runLine(p, resp.GetRun()) })
	})
	return s.Mutation(cmd)
}

func workersCommand(s *session.Session) *cobra.Command {
	req := &boardv1.ListWorkersRequest{}
	cmd := &cobra.Command{
		Use: "workers", Short: "List the workers that are connected", Args: input.None, Example: "  quartet board workers --pool go",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			resp, err := boardv1.NewBoardServiceClient(conn).ListWorkers(cmd.Context(), req)
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) {
				var rows [][]string
				for _, w := range resp.GetWorkers() {
					rows = append(rows, []string{
						w.GetWorkerId(), strings.Join(w.GetWorkerPoolIds(), ","), fmt.Sprintf("%d of %d", len(w.GetRunIds()), w.GetCapacity()), output.Time(w.GetConnectedAt()),
					})
				}
				p.Table("no workers are connected", []string{"WORKER", "POOLS", "BUSY", "SINCE"}, rows)
			})
		}),
	}
	cmd.Flags().StringVar(&req.WorkerPoolId, "pool", "", "Only of this pool")
	return cmd
}

func inspectCommand(s *session.Session) *cobra.Command {
	req := &boardv1.InspectBoardRequest{}
	cmd := &cobra.Command{
		Use: "inspect SESSION/BOARD", Short: "Show what happened on a board, and what its workers were given", Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board inspect keeper/build --lines 20",
	}
	cmd.Flags().Int32Var(&req.Timeline, "lines", 0, "How many of the newest lines of its WAL (default 50)")
	cmd.Flags().StringVar(&req.WalName, "wal", "", "The log, where several boards of the name have ended")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.InspectBoard(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			drawBoard(p, resp.GetBoard(), s.Now())
			p.Printf("\n%s\n", p.Paint(output.Bold, "RUNS"))
			runTable(p, resp.GetRuns())
			for _, d := range resp.GetDispatched() {
				if d.GetUpdatedAfterDispatch() {
					p.Printf("%s: step %s was changed after it was given out\n", d.GetRunId(), d.GetNow().GetStepId())
				}
			}
			for _, d := range resp.GetDispatches() {
				p.Printf("%s: pool %s, up to %d at once, %d under way\n", d.GetDispatchId(), d.GetWorkerPoolId(), d.GetMaxParallel(), d.GetRunning())
			}
			p.Printf("\n%s\n", p.Paint(output.Bold, "TIMELINE"))
			for _, line := range resp.GetTimeline() {
				p.Printf("%s\n", output.Printable(output.Shorten(line, p.Columns())))
			}
		})
	})
	return cmd
}

func templateCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "template", Short: "Show how to write a good board", Args: input.None, Example: "  quartet board template",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			resp, err := boardv1.NewBoardServiceClient(conn).GetTemplate(cmd.Context(), &boardv1.GetTemplateRequest{})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) { p.Printf("%s\n", strings.TrimRight(resp.GetText(), "\n")) })
		}),
	}
}

func summaryCommand(s *session.Session) *cobra.Command {
	req := &boardv1.GetSummaryRequest{}
	cmd := &cobra.Command{
		Use: "summary SESSION", Short: "Show what a model is told of a session's boards", Args: input.Exactly("SESSION"), Example: "  quartet board summary keeper --budget 600",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.SessionId = args[0]
			resp, err := boardv1.NewBoardServiceClient(conn).GetSummary(cmd.Context(), req)
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) {
				p.Printf("%s\n", cmp.Or(strings.TrimRight(resp.GetText(), "\n"), "no active boards"))
			})
		}),
	}
	cmd.Flags().Int32Var(&req.TokenBudget, "budget", 0, "In tokens (default 1200)")
	return cmd
}
