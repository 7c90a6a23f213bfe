package boards

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// dispatchCommand returns `quartet board dispatch`.
func dispatchCommand(s *session.Session) *cobra.Command {
	req := &boardv1.DispatchWorkerRequest{}
	var steps []string
	var timeout, wait string
	cmd := &cobra.Command{
		Use: "dispatch SESSION/BOARD", Short: "Start one run of a worker for one step",
		Args: input.Exactly("SESSION/BOARD"),
		Long: `Start one run of a worker. It claims a ready step of the pool, or one that --step
names, and executes it. If no worker of the pool is free, the command fails with
WORKER_POOL_BUSY; nothing is queued. --wait waits for the end, at most 55s;
"quartet board runs" shows the result later.`,
		Example: "  quartet board dispatch keeper/build --pool go --wait 30s\n  quartet board dispatch keeper/build " +
			"--step test -i \"TestUpload is flaky\"",
	}
	fl := cmd.Flags()
	fl.StringVar(&req.WorkerPoolId, "pool", "", "The pool (default: the board's)")
	fl.StringVar(&req.WorkerId, "worker", "", "The worker of the pool (default: any free one)")
	fl.StringSliceVar(&steps, "step", nil, "Only this step; may be repeated")
	fl.StringVarP(&req.Instruction, "instruction", "i", "", "Text for the worker")
	fl.StringVar(&timeout, "timeout", "", "Stop the run after this duration, such as 30m (default 1h)")
	fl.StringVar(&wait, "wait", "", "Wait this long for its end (default: do not wait)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
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
		return s.Show(cmd, resp, func(p *output.Printer) { writeRun(p, resp.GetRun()) })
	})
	return s.Mutation(cmd)
}

// stepList returns nil for no steps, which allows all of them.
func stepList(steps []string) *boardv1.StepList {
	if len(steps) == 0 {
		return nil
	}
	return &boardv1.StepList{StepIds: steps}
}

// writeRun writes a run as one line, and its result below it.
func writeRun(p *output.Printer, r *boardv1.WorkerRun) {
	p.Printf("%s %s", r.GetRunId(), pbjson.EnumText(r.GetStatus()))
	switch {
	case r.GetNoStepClaimed():
		p.Printf(", no step was ready to claim")
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
	if text := joined(r.GetStepResultSummary(), r.GetWorkerResult(), pbjson.EnumText(r.GetEndReason())); text != "" {
		p.Printf("%s\n", terminal.Printable(text))
	}
}

// openCommand returns `quartet board open`.
func openCommand(s *session.Session) *cobra.Command {
	req := &boardv1.OpenStandingDispatchRequest{}
	var steps []string
	var timeout string
	cmd := &cobra.Command{
		Use: "open SESSION/BOARD POOL", Short: "Let the workers of a pool claim steps until closed",
		Args: input.Exactly("SESSION/BOARD", "POOL"),
		Long: `Open a standing dispatch: each free worker of the pool claims the next ready step,
in a run of its own, until "quartet board close". Without a dispatch no worker
claims a step. A run that takes longer than --step-timeout is stopped, and its step
fails with the reason worker_timeout.`,
		Example: "  quartet board open keeper/build go --parallel 4",
	}
	cmd.Flags().Int32Var(&req.MaxParallel, "parallel", 0, "Maximum number of steps at once (default 1000)")
	cmd.Flags().StringSliceVar(&steps, "step", nil, "Only this step; may be repeated")
	cmd.Flags().StringVarP(&req.Instruction, "instruction", "i", "", "Text for the workers")
	cmd.Flags().StringVar(&timeout, "step-timeout", "", "Stop each run after this duration, such as 30m; at most 24h "+
		"(default 1h)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		args []string,
	) error {
		req.SessionId, req.BoardId, req.RequestId, req.WorkerPoolId, req.AllowedStepIds = sessionID, boardID,
			s.RequestID, args[0], stepList(steps)
		var err error
		if req.StepTimeout, err = input.Duration("step-timeout", timeout); err != nil {
			return err
		}
		resp, err := c.OpenStandingDispatch(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			d := resp.GetDispatch()
			p.Printf("%s: pool %s claims up to %s at once; end it with: quartet board close %s/%s %s\n",
				d.GetDispatchId(), d.GetWorkerPoolId(), terminal.Count(d.GetMaxParallel(), "step", "steps"), sessionID,
				boardID, d.GetDispatchId())
		})
	})
	return s.Mutation(cmd)
}

// closeCommand returns `quartet board close`.
func closeCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "close SESSION/BOARD DISPATCH", Short: "Close a standing dispatch; its runs continue",
		Args:    input.Exactly("SESSION/BOARD", "DISPATCH"),
		Example: "  quartet board close keeper/build dsp_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		args []string,
	) error {
		resp, err := c.CloseStandingDispatch(cmd.Context(), &boardv1.CloseStandingDispatchRequest{
			SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, DispatchId: args[0],
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s closed, %s\n", resp.GetDispatch().GetDispatchId(),
				terminal.Count(resp.GetDispatch().GetRunning(), "run continues", "runs continue"))
		})
	})
	return s.Mutation(cmd)
}

// runsCommand returns `quartet board runs`.
func runsCommand(s *session.Session) *cobra.Command {
	req := &boardv1.ListWorkerRunsRequest{}
	cmd := &cobra.Command{
		Use: "runs SESSION/BOARD", Short: "List the runs of workers on a board", Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board runs keeper/build --running",
	}
	cmd.Flags().BoolVar(&req.RunningOnly, "running", false, "Only running ones")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "Maximum number of runs (default 50)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.ListWorkerRuns(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { writeRuns(p, resp.GetRuns()) })
	})
	return cmd
}

// writeRuns writes runs as a table.
func writeRuns(p *output.Printer, runs []*boardv1.WorkerRun) {
	var rows [][]string
	for _, r := range runs {
		step := r.GetClaimedStepId()
		if r.GetNoStepClaimed() {
			step = "none"
		}
		status := ""
		if r.GetStepStatus() != boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
			status = pbjson.EnumText(r.GetStepStatus())
		}
		rows = append(rows, []string{
			r.GetRunId(), pbjson.EnumText(r.GetStatus()), r.GetWorkerId(), step, status,
			p.Time(r.GetDispatchedAt()),
			output.Flexible(joined(r.GetStepResultSummary(), pbjson.EnumText(r.GetEndReason()))),
		})
	}
	p.Table("no runs", []string{"RUN", "STATUS", "WORKER", "STEP", "STEP STATUS", "DISPATCHED", "RESULT"}, rows)
}

// cancelRunCommand returns `quartet board cancel-run`.
func cancelRunCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel-run SESSION/BOARD RUN", Short: "Stop one worker's run",
		Args:    input.Exactly("SESSION/BOARD", "RUN"),
		Example: "  quartet board cancel-run keeper/build run_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		args []string,
	) error {
		resp, err := c.CancelWorkerRun(cmd.Context(), &boardv1.CancelWorkerRunRequest{
			SessionId: sessionID,
			BoardId:   boardID, RequestId: s.RequestID, RunId: args[0],
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { writeRun(p, resp.GetRun()) })
	})
	return s.Mutation(cmd)
}

// workersCommand returns `quartet board workers`.
func workersCommand(s *session.Session) *cobra.Command {
	req := &boardv1.ListWorkersRequest{}
	cmd := &cobra.Command{
		Use: "workers", Short: "List the workers that are connected", Args: input.None,
		Example: "  quartet board workers --pool go",
		RunE: session.Call(s, boardv1.NewBoardServiceClient, boardv1.BoardServiceClient.ListWorkers,
			func(_ []string) (*boardv1.ListWorkersRequest, error) {
				return req, nil
			},
			func(p *output.Printer, resp *boardv1.ListWorkersResponse) {
				var rows [][]string
				for _, w := range resp.GetWorkers() {
					rows = append(rows, []string{
						w.GetWorkerId(), strings.Join(w.GetWorkerPoolIds(), ","),
						fmt.Sprintf("%d of %d", len(w.GetRunIds()), w.GetCapacity()), p.Time(w.GetConnectedAt()),
					})
				}
				p.Table("no workers are connected", []string{"WORKER", "POOLS", "BUSY", "SINCE"}, rows)
			}),
	}
	cmd.Flags().StringVar(&req.WorkerPoolId, "pool", "", "Only workers of this pool")
	return cmd
}

// inspectCommand returns `quartet board inspect`.
func inspectCommand(s *session.Session) *cobra.Command {
	req := &boardv1.InspectBoardRequest{}
	cmd := &cobra.Command{
		Use: "inspect SESSION/BOARD", Short: "Show the history of a board: its runs, dispatches and newest log lines",
		Args:    input.Exactly("SESSION/BOARD"),
		Example: "  quartet board inspect keeper/build --lines 20",
	}
	cmd.Flags().Int32Var(&req.Timeline, "lines", 0, "Number of the newest lines of its log (default 50)")
	cmd.Flags().StringVar(&req.WalName, "wal", "", "The name of the log, if several boards of this name have ended")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		req.SessionId, req.BoardId = sessionID, boardID
		resp, err := c.InspectBoard(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			drawBoard(p, resp.GetBoard(), s.Now())
			p.Printf("\n%s\n", p.Paint(terminal.Bold, "RUNS"))
			writeRuns(p, resp.GetRuns())
			for _, d := range resp.GetDispatched() {
				if d.GetUpdatedAfterDispatch() {
					p.Printf("%s: step %s was changed after it was dispatched\n", d.GetRunId(), d.GetNow().GetStepId())
				}
			}
			for _, d := range resp.GetDispatches() {
				p.Printf("%s: pool %s, up to %d at once, %d running\n", d.GetDispatchId(), d.GetWorkerPoolId(),
					d.GetMaxParallel(), d.GetRunning())
			}
			p.Printf("\n%s\n", p.Paint(terminal.Bold, "TIMELINE"))
			for _, line := range resp.GetTimeline() {
				p.Printf("%s\n", terminal.Printable(output.Shorten(line, p.Columns())))
			}
		})
	})
	return cmd
}

// templateCommand returns `quartet board template`.
func templateCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "template", Short: "Show a guide to writing a board", Args: input.None,
		Example: "  quartet board template",
		RunE: session.Call(s, boardv1.NewBoardServiceClient, boardv1.BoardServiceClient.GetTemplate,
			func(_ []string) (*boardv1.GetTemplateRequest, error) {
				return &boardv1.GetTemplateRequest{}, nil
			},
			func(p *output.Printer, resp *boardv1.GetTemplateResponse) {
				p.Printf("%s\n", strings.TrimRight(resp.GetText(), "\n"))
			}),
	}
}

// summaryCommand returns `quartet board summary`.
func summaryCommand(s *session.Session) *cobra.Command {
	req := &boardv1.GetSummaryRequest{}
	cmd := &cobra.Command{
		Use: "summary SESSION", Short: "Show the summary of a session's boards that is part of a model's context",
		Args: input.Exactly("SESSION"), Example: "  quartet board summary keeper --budget 600",
		RunE: session.Call(s, boardv1.NewBoardServiceClient, boardv1.BoardServiceClient.GetSummary,
			func(args []string) (*boardv1.GetSummaryRequest, error) {
				req.SessionId = args[0]
				return req, nil
			},
			func(p *output.Printer, resp *boardv1.GetSummaryResponse) {
				p.Printf("%s\n", cmp.Or(strings.TrimRight(resp.GetText(), "\n"), "no active boards"))
			}),
	}
	cmd.Flags().Int32Var(&req.TokenBudget, "budget", 0, "Maximum size in tokens (default 1200)")
	return cmd
}
