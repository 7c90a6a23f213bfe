package boards

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// applyCommand returns `quartet board apply`.
func applyCommand(s *session.Session) *cobra.Command {
	var dry, prune bool
	cmd := &cobra.Command{
		Use: "apply SESSION FILE", Short: "Create or change a board so that it matches a file",
		Args: input.Exactly("SESSION", "FILE"),
		Long: `Create the board that a YAML file describes, or change the active board of that
name so that it matches the file, in one atomic change. Results of steps are kept;
steps that are not in the file are kept too, unless --prune is given. "-" reads
stdin.

  board: build             # its id
  wal: build-1             # name of its log; default: the id
  title: Build and test
  pool: go                 # pool of the steps that name none
  steps:
    - id: fetch
    - id: test
      title: Run the tests
      needs: [fetch]
      pool: slow
      required: false      # the board can be completed without it`,
		Example: "  quartet board apply keeper board.yaml --dry-run\n  quartet board apply keeper board.yaml",
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "Only print what would change")
	cmd.Flags().BoolVar(&prune, "prune", false, "Delete steps that are not in the file")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		from := args[1]
		if from != "-" {
			from = "@" + from
		}
		text, err := input.Text(cmd, from)
		if err != nil {
			return err
		}
		f, err := readBoardFile(text)
		if err != nil {
			return err
		}
		return apply(s, cmd, boardv1.NewBoardServiceClient(conn), args[0], f, dry, prune)
	})
	return s.Mutation(cmd)
}

// apply creates the board of f, or patches the active one at the revision that was
// read.
func apply(s *session.Session, cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID string, f *boardFile, dry,
	prune bool,
) error {
	got, err := c.GetBoard(cmd.Context(), &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: f.Board})
	missing := errors.Is(err, fault.NotFound)
	if err != nil && !missing {
		return err
	}
	// A name can be used again after its board has ended.
	if missing || hasEnded(got.GetBoard().GetStatus()) {
		if dry {
			return printLine(s, cmd, fmt.Sprintf("would create %s/%s with %s", sessionID, f.Board,
				terminal.Count(len(f.Steps), "step", "steps")))
		}
		resp, err := c.CreateBoard(cmd.Context(), &boardv1.CreateBoardRequest{
			SessionId: sessionID, RequestId: s.RequestID, BoardId: f.Board, WalName: f.Wal, Title: f.Title,
			Summary: f.Summary,
			Steps:   f.inputs(), DefaultWorkerPoolId: f.Pool,
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("created %s/%s: %s\n", sessionID, f.Board, stepCounts(resp.GetBoard().GetCounts()))
		})
	}
	changes := f.changes(got.GetBoard(), prune)
	req := &boardv1.UpdateBoardRequest{
		SessionId: sessionID, RequestId: s.RequestID, BoardId: f.Board,
		ExpectedRevision: &got.GetBoard().Revision,
	}
	p := output.New(cmd.OutOrStdout())
	for _, ch := range changes {
		if !s.JSON() {
			p.Printf("%s\n", terminal.Printable(ch.text))
		}
		req.Operations = append(req.Operations, ch.op)
	}
	switch {
	case p.Err() != nil:
		return p.Err()
	case len(changes) == 0:
		return printLine(s, cmd, fmt.Sprintf("%s/%s matches the file already", sessionID, f.Board))
	case dry:
		return printLine(s, cmd, fmt.Sprintf("would make %d changes to %s/%s", len(changes), sessionID, f.Board))
	}
	resp, err := c.UpdateBoard(cmd.Context(), req)
	if err != nil {
		return err
	}
	return s.Show(cmd, resp, func(p *output.Printer) {
		p.Printf("changed %s/%s: %s\n", sessionID, f.Board, stepCounts(resp.GetBoard().GetCounts()))
	})
}

// printLine writes a line where there is no response to show: to stdout, or to stderr
// if stdout is for JSON.
func printLine(s *session.Session, cmd *cobra.Command, line string) error {
	out := cmd.OutOrStdout()
	if s.JSON() {
		out = cmd.ErrOrStderr()
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// endCommand returns the command complete, fail or cancel.
func endCommand(s *session.Session, verb string) *cobra.Command {
	about := map[string][2]string{
		"complete": {"Complete a board whose required steps are completed", ""},
		"fail":     {"End a board as failed", "\nRunning steps are cancelled first; their workers have 30 s to stop."},
		"cancel":   {"Cancel a board", "\nRunning steps are cancelled first; their workers have 30 s to stop."},
	}[verb]
	var reason string
	cmd := &cobra.Command{
		Use: verb + " SESSION/BOARD", Short: about[0], Args: input.Exactly("SESSION/BOARD"),
		Long: about[0] + ". An ended board never changes again." + about[1], Example: "  quartet board " + verb +
			" keeper/build --reason \"as agreed\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "The reason, for people")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		done := func(b *boardv1.Board, late []string) func(*output.Printer) {
			return func(p *output.Printer) {
				p.Printf("%s/%s %s: %s\n", sessionID, boardID, pbjson.EnumText(b.GetStatus()),
					stepCounts(b.GetCounts()))
				for _, run := range late {
					p.Printf("%s did not stop in time\n", run)
				}
			}
		}
		switch verb {
		case "complete":
			resp, err := c.CompleteBoard(cmd.Context(), &boardv1.CompleteBoardRequest{
				SessionId: sessionID,
				BoardId:   boardID, RequestId: s.RequestID, Reason: reason,
			})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, done(resp.GetBoard(), nil))
		case "fail":
			resp, err := c.FailBoard(cmd.Context(), &boardv1.FailBoardRequest{
				SessionId: sessionID, BoardId: boardID,
				RequestId: s.RequestID, Reason: reason,
			})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
		}
		resp, err := c.CancelBoard(cmd.Context(), &boardv1.CancelBoardRequest{
			SessionId: sessionID, BoardId: boardID,
			RequestId: s.RequestID, Reason: reason,
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
	})
	return s.Mutation(cmd)
}

// patch applies one operation to a board.
func patch(s *session.Session, cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
	op *boardv1.Operation,
) error {
	resp, err := c.UpdateBoard(cmd.Context(), &boardv1.UpdateBoardRequest{
		SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, Operations: []*boardv1.Operation{op},
	})
	if err != nil {
		return err
	}
	return s.Show(cmd, resp, func(p *output.Printer) {
		p.Printf("%s/%s %s: %s\n", sessionID, boardID, pbjson.EnumText(resp.GetBoard().GetStatus()),
			stepCounts(resp.GetBoard().GetCounts()))
	})
}

// blockCommand returns `quartet board block`.
func blockCommand(s *session.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "block SESSION/BOARD", Short: "Block a board: no further steps are dispatched or claimed",
		Args:    input.Exactly("SESSION/BOARD"),
		Example: "  quartet board block keeper/build --reason \"the freeze\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "The reason, for people (required)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		return patch(s, cmd, c, sessionID, boardID,
			&boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD, Reason: reason})
	})
	return s.Mutation(cmd)
}

// reopenCommand returns `quartet board reopen`.
func reopenCommand(s *session.Session) *cobra.Command {
	var step, reason string
	cmd := &cobra.Command{
		Use: "reopen SESSION/BOARD", Short: "Reopen a blocked board, or a blocked or failed step",
		Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board reopen keeper/build\n  quartet board reopen keeper/build --step test --reason " +
			"\"the disk was full\"",
	}
	cmd.Flags().StringVar(&step, "step", "", "The step to reopen (default: the board)")
	cmd.Flags().StringVar(&reason, "reason", "", "The reason, for people")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		op := &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD, Reason: reason}
		if step != "" {
			op.Op, op.StepId = boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP, step
		}
		return patch(s, cmd, c, sessionID, boardID, op)
	})
	return s.Mutation(cmd)
}

// stepCommand returns `quartet board step`.
func stepCommand(s *session.Session) *cobra.Command {
	req := &boardv1.UpdateStepRequest{}
	var status, result string
	cmd := &cobra.Command{
		Use: "step SESSION/BOARD STEP STATUS", Short: "Set the status of a step, as the orchestrator",
		Args: input.Exactly("SESSION/BOARD", "STEP", "STATUS"),
		Long: `Set the status of a step without a worker. An orchestrator may set a pending or
ready step to blocked, failed or cancelled, a ready one to completed, a claimed or
running one to blocked, completed or failed, and a blocked or failed one to
pending.`,
		Example: "  quartet board step keeper/build approve completed --result \"signed\"",
	}
	cmd.Flags().StringVar(&result, "result", "", "The result of the step")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "The reason, for people")
	cmd.Flags().StringSliceVar(&req.ArtifactIds, "artifact", nil, "Id of an artifact that the step produced; may be "+
		"repeated")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		args []string,
	) error {
		status = args[1]
		var err error
		if req.Status, err = input.Enum[boardv1.StepStatus]("status", status); err != nil {
			return err
		}
		req.SessionId, req.BoardId, req.StepId, req.RequestId = sessionID, boardID, args[0], s.RequestID
		if cmd.Flags().Changed("result") {
			req.ResultSummary = &result
		}
		resp, err := c.UpdateStep(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s %s\n", resp.GetStep().GetStepId(), pbjson.EnumText(resp.GetStep().GetStatus()))
		})
	})
	return s.Mutation(cmd)
}
