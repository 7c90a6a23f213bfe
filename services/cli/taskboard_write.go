package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

func (ss *session) boardApply() *cobra.Command {
	var dry, prune bool
	cmd := &cobra.Command{
		Use: "apply SESSION FILE", Short: "Make a board be what a file says", Args: exactly("SESSION", "FILE"),
		Long: `Make the board of a YAML file, or change the active one of that name until it is
what the file says: in one step, or not at all. What was done stays; steps that
the file does not have stay too, unless --prune is given. "-" reads stdin.

  board: build             # its id
  wal: build-1             # name of its log; default: the id
  title: Build and test
  pool: go                 # where steps go that name none
  steps:
    - id: fetch
    - id: test
      title: Run the tests
      needs: [fetch]
      pool: slow
      required: false      # the board may be completed without it`,
		Example: "  quartet board apply keeper board.yaml --dry-run\n  quartet board apply keeper board.yaml",
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "Only say what would change")
	cmd.Flags().BoolVar(&prune, "prune", false, "Delete steps that the file does not have")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		from := args[1]
		if from != "-" {
			from = "@" + from
		}
		text, err := content(cmd, from)
		if err != nil {
			return err
		}
		f, err := readBoardFile(text)
		if err != nil {
			return err
		}
		return ss.apply(cmd, boardv1.NewBoardServiceClient(conn), args[0], f, dry, prune)
	})
	return ss.mutates(cmd)
}

func (ss *session) apply(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID string, f *boardFile, dry, prune bool) error {
	got, err := c.GetBoard(cmd.Context(), &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: f.Board})
	missing := errors.Is(err, fault.NotFound)
	if err != nil && !missing {
		return err
	}
	// A name may be used again after its board has ended.
	if missing || over(got.GetBoard().GetStatus()) {
		if dry {
			return ss.says(cmd, fmt.Sprintf("would create %s/%s with %d steps", sessionID, f.Board, len(f.Steps)))
		}
		resp, err := c.CreateBoard(cmd.Context(), &boardv1.CreateBoardRequest{
			SessionId: sessionID, RequestId: ss.requestID, BoardId: f.Board, WalName: f.Wal, Title: f.Title, Summary: f.Summary,
			Steps: f.inputs(), DefaultWorkerPoolId: f.Pool,
		})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("created %s/%s: %s\n", sessionID, f.Board, tally(resp.GetBoard().GetCounts()))
		})
	}
	changes := f.changes(got.GetBoard(), prune)
	req := &boardv1.UpdateBoardRequest{SessionId: sessionID, RequestId: ss.requestID, BoardId: f.Board, ExpectedRevision: &got.GetBoard().Revision}
	p := newPrinter(cmd.OutOrStdout())
	for _, ch := range changes {
		if ss.output != formJSON {
			p.printf("%s\n", printable(ch.says))
		}
		req.Operations = append(req.Operations, ch.op)
	}
	switch {
	case p.err != nil:
		return p.err
	case len(changes) == 0:
		return ss.says(cmd, fmt.Sprintf("%s/%s is what the file says", sessionID, f.Board))
	case dry:
		return ss.says(cmd, fmt.Sprintf("would make %d changes to %s/%s", len(changes), sessionID, f.Board))
	}
	resp, err := c.UpdateBoard(cmd.Context(), req)
	if err != nil {
		return err
	}
	return ss.show(cmd, resp, func(p *printer) {
		p.printf("changed %s/%s: %s\n", sessionID, f.Board, tally(resp.GetBoard().GetCounts()))
	})
}

// says writes a line where there is no response to show.
func (ss *session) says(cmd *cobra.Command, line string) error {
	out := cmd.OutOrStdout()
	if ss.output == formJSON {
		out = os.Stderr
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// boardEnd is complete, fail or cancel.
func (ss *session) boardEnd(verb string) *cobra.Command {
	about := map[string][2]string{
		"complete": {"Close a board whose required steps are done", ""},
		"fail":     {"Give a board up as failed", "\nRunning steps are cancelled first, and their workers get 30 s to stop."},
		"cancel":   {"Give a board up", "\nRunning steps are cancelled first, and their workers get 30 s to stop."},
	}[verb]
	var reason string
	cmd := &cobra.Command{
		Use: verb + " SESSION/BOARD", Short: about[0], Args: exactly("SESSION/BOARD"),
		Long: about[0] + ". An ended board never changes again." + about[1], Example: "  quartet board " + verb + " keeper/build --reason \"as agreed\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		done := func(b *boardv1.Board, late []string) func(*printer) {
			return func(p *printer) {
				p.printf("%s/%s %s: %s\n", sessionID, boardID, short(b.GetStatus()), tally(b.GetCounts()))
				for _, run := range late {
					p.printf("%s did not stop in time\n", run)
				}
			}
		}
		switch verb {
		case "complete":
			resp, err := c.CompleteBoard(cmd.Context(), &boardv1.CompleteBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, Reason: reason})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, done(resp.GetBoard(), nil))
		case "fail":
			resp, err := c.FailBoard(cmd.Context(), &boardv1.FailBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, Reason: reason})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
		}
		resp, err := c.CancelBoard(cmd.Context(), &boardv1.CancelBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, Reason: reason})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
	})
	return ss.mutates(cmd)
}

// patch sends one operation.
func (ss *session) patch(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, op *boardv1.Operation) error {
	resp, err := c.UpdateBoard(cmd.Context(), &boardv1.UpdateBoardRequest{
		SessionId: sessionID, BoardId: boardID, RequestId: ss.requestID, Operations: []*boardv1.Operation{op},
	})
	if err != nil {
		return err
	}
	return ss.show(cmd, resp, func(p *printer) {
		p.printf("%s/%s %s: %s\n", sessionID, boardID, short(resp.GetBoard().GetStatus()), tally(resp.GetBoard().GetCounts()))
	})
}

func (ss *session) boardBlock() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "block SESSION/BOARD", Short: "Let nothing more be dispatched or claimed", Args: exactly("SESSION/BOARD"),
		Example: "  quartet board block keeper/build --reason \"the freeze\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why (required)")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		return ss.patch(cmd, c, sessionID, boardID, &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD, Reason: reason})
	})
	return ss.mutates(cmd)
}

func (ss *session) boardReopen() *cobra.Command {
	var step, reason string
	cmd := &cobra.Command{
		Use: "reopen SESSION/BOARD", Short: "Let a blocked board, or a blocked or failed step, go on", Args: exactly("SESSION/BOARD"),
		Example: "  quartet board reopen keeper/build\n  quartet board reopen keeper/build --step test --reason \"the disk was full\"",
	}
	cmd.Flags().StringVar(&step, "step", "", "The step; default: the board")
	cmd.Flags().StringVar(&reason, "reason", "", "Why")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		op := &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD, Reason: reason}
		if step != "" {
			op.Op, op.StepId = boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP, step
		}
		return ss.patch(cmd, c, sessionID, boardID, op)
	})
	return ss.mutates(cmd)
}

func (ss *session) boardStep() *cobra.Command {
	req := &boardv1.UpdateStepRequest{}
	var status, result string
	cmd := &cobra.Command{
		Use: "step SESSION/BOARD STEP STATUS", Short: "Set a step's status as its orchestrator", Args: exactly("SESSION/BOARD", "STEP", "STATUS"),
		Long: `Set a step's status without a worker. An orchestrator may take a pending or ready
step to blocked, failed or cancelled, a ready one to completed, a claimed or
running one to blocked, completed or failed, and a blocked or failed one back to
pending. STATUS is one of these words.`,
		Example: "  quartet board step keeper/build approve completed --result \"signed\"",
	}
	cmd.Flags().StringVar(&result, "result", "", "What came of it")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "Why")
	cmd.Flags().StringSliceVar(&req.ArtifactIds, "artifact", nil, "What it made; may be repeated")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
		status = args[1]
		var err error
		if req.Status, err = enum[boardv1.StepStatus]("status", status); err != nil {
			return err
		}
		req.SessionId, req.BoardId, req.StepId, req.RequestId = sessionID, boardID, args[0], ss.requestID
		if cmd.Flags().Changed("result") {
			req.ResultSummary = &result
		}
		resp, err := c.UpdateStep(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { p.printf("%s %s\n", resp.GetStep().GetStepId(), short(resp.GetStep().GetStatus())) })
	})
	return ss.mutates(cmd)
}
