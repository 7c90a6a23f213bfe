package boards

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

func applyCommand(s *session.Session) *cobra.Command {
	var dry, prune bool
	cmd := &cobra.Command{
		Use: "apply SESSION FILE", Short: "Make a board be what a file says", Args: input.Exactly("SESSION", "FILE"),
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

func apply(s *session.Session, cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID string, f *boardFile, dry, prune bool) error {
	got, err := c.GetBoard(cmd.Context(), &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: f.Board})
	missing := errors.Is(err, fault.NotFound)
	if err != nil && !missing {
		return err
	}
	// A name may be used again after its board has ended.
	if missing || over(got.GetBoard().GetStatus()) {
		if dry {
			return says(s, cmd, fmt.Sprintf("would create %s/%s with %d steps", sessionID, f.Board, len(f.Steps)))
		}
		resp, err := c.CreateBoard(cmd.Context(), &boardv1.CreateBoardRequest{
			SessionId: sessionID, RequestId: s.RequestID, BoardId: f.Board, WalName: f.Wal, Title: f.Title, Summary: f.Summary,
			Steps: f.inputs(), DefaultWorkerPoolId: f.Pool,
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("created %s/%s: %s\n", sessionID, f.Board, tally(resp.GetBoard().GetCounts()))
		})
	}
	changes := f.changes(got.GetBoard(), prune)
	req := &boardv1.UpdateBoardRequest{SessionId: sessionID, RequestId: s.RequestID, BoardId: f.Board, ExpectedRevision: &got.GetBoard().Revision}
	p := output.New(cmd.OutOrStdout())
	for _, ch := range changes {
		if !s.JSON() {
			p.Printf("%s\n", output.Printable(ch.says))
		}
		req.Operations = append(req.Operations, ch.op)
	}
	switch {
	case p.Err() != nil:
		return p.Err()
	case len(changes) == 0:
		return says(s, cmd, fmt.Sprintf("%s/%s is what the file says", sessionID, f.Board))
	case dry:
		return says(s, cmd, fmt.Sprintf("would make %d changes to %s/%s", len(changes), sessionID, f.Board))
	}
	resp, err := c.UpdateBoard(cmd.Context(), req)
	if err != nil {
		return err
	}
	return s.Show(cmd, resp, func(p *output.Printer) {
		p.Printf("changed %s/%s: %s\n", sessionID, f.Board, tally(resp.GetBoard().GetCounts()))
	})
}

// says writes a line where there is no response to show.
func says(s *session.Session, cmd *cobra.Command, line string) error {
	out := cmd.OutOrStdout()
	if s.JSON() {
		out = os.Stderr
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// boardEnd is complete, fail or cancel.
func endCommand(s *session.Session, verb string) *cobra.Command {
	about := map[string][2]string{
		"complete": {"Close a board whose required steps are done", ""},
		"fail":     {"Give a board up as failed", "\nRunning steps are cancelled first, and their workers get 30 s to stop."},
		"cancel":   {"Give a board up", "\nRunning steps are cancelled first, and their workers get 30 s to stop."},
	}[verb]
	var reason string
	cmd := &cobra.Command{
		Use: verb + " SESSION/BOARD", Short: about[0], Args: input.Exactly("SESSION/BOARD"),
		Long: about[0] + ". An ended board never changes again." + about[1], Example: "  quartet board " + verb + " keeper/build --reason \"as agreed\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		done := func(b *boardv1.Board, late []string) func(*output.Printer) {
			return func(p *output.Printer) {
				p.Printf("%s/%s %s: %s\n", sessionID, boardID, pbjson.EnumText(b.GetStatus()), tally(b.GetCounts()))
				for _, run := range late {
					p.Printf("%s did not stop in time\n", run)
				}
			}
		}
		switch verb {
		case "complete":
			resp, err := c.CompleteBoard(cmd.Context(), &boardv1.CompleteBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, Reason: reason})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, done(resp.GetBoard(), nil))
		case "fail":
			resp, err := c.FailBoard(cmd.Context(), &boardv1.FailBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, Reason: reason})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
		}
		resp, err := c.CancelBoard(cmd.Context(), &boardv1.CancelBoardRequest{SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, Reason: reason})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, done(resp.GetBoard(), resp.GetTimedOutRunIds()))
	})
	return s.Mutation(cmd)
}

// patch sends one operation.
func patch(s *session.Session, cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, op *boardv1.Operation) error {
	resp, err := c.UpdateBoard(cmd.Context(), &boardv1.UpdateBoardRequest{
		SessionId: sessionID, BoardId: boardID, RequestId: s.RequestID, Operations: []*boardv1.Operation{op},
	})
	if err != nil {
		return err
	}
	return s.Show(cmd, resp, func(p *output.Printer) {
		p.Printf("%s/%s %s: %s\n", sessionID, boardID, pbjson.EnumText(resp.GetBoard().GetStatus()), tally(resp.GetBoard().GetCounts()))
	})
}

func blockCommand(s *session.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "block SESSION/BOARD", Short: "Let nothing more be dispatched or claimed", Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board block keeper/build --reason \"the freeze\"",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Why (required)")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		return patch(s, cmd, c, sessionID, boardID, &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD, Reason: reason})
	})
	return s.Mutation(cmd)
}

func reopenCommand(s *session.Session) *cobra.Command {
	var step, reason string
	cmd := &cobra.Command{
		Use: "reopen SESSION/BOARD", Short: "Let a blocked board, or a blocked or failed step, go on", Args: input.Exactly("SESSION/BOARD"),
		Example: "  quartet board reopen keeper/build\n  quartet board reopen keeper/build --step test --reason \"the disk was full\"",
	}
	cmd.Flags().StringVar(&step, "step", "", "The step; default: the board")
	cmd.Flags().StringVar(&reason, "reason", "", "Why")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		op := &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD, Reason: reason}
		if step != "" {
			op.Op, op.StepId = boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP, step
		}
		return patch(s, cmd, c, sessionID, boardID, op)
	})
	return s.Mutation(cmd)
}

func stepCommand(s *session.Session) *cobra.Command {
	req := &boardv1.UpdateStepRequest{}
	var status, result string
	cmd := &cobra.Command{
		Use: "step SESSION/BOARD STEP STATUS", Short: "Set a step's status as its orchestrator", Args: input.Exactly("SESSION/BOARD", "STEP", "STATUS"),
		Long: `Set a step's status without a worker. An orchestrator may take a pending or ready
step to blocked, failed or cancelled, a ready one to completed, a claimed or
running one to blocked, completed or failed, and a blocked or failed one back to
pending. STATUS is one of these words.`,
		Example: "  quartet board step keeper/build approve completed --result \"signed\"",
	}
	cmd.Flags().StringVar(&result, "result", "", "What came of it")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "Why")
	cmd.Flags().StringSliceVar(&req.ArtifactIds, "artifact", nil, "What it made; may be repeated")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error {
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
