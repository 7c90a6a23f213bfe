package boards

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// Command returns `quartet board`. replay may be nil; the commands that read a log
// without a server then fail.
func Command(s *session.Session, replay Replay) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "board", Short: "Boards: steps with dependencies, executed by many workers",
		Aliases: []string{"boards"},
	})
	c.Long = `A board is a graph of steps. One agent owns it, its orchestrator; the agent's id is
the session of the board. A step becomes ready when all steps that it needs are
completed. Workers claim ready steps, one worker per step, execute them and report
the result. A board is named SESSION/BOARD.`
	c.Example = `  quartet board apply keeper board.yaml
  quartet board open keeper/build go --parallel 4
  quartet worker --pool go --handler ./run-step
  quartet board watch keeper/build`
	c.AddCommand(applyCommand(s), listCommand(s), showCommand(s), watchCommand(s), inspectCommand(s),
		endCommand(s, "complete"), endCommand(s, "fail"), endCommand(s, "cancel"), blockCommand(s), reopenCommand(s),
		stepCommand(s),
		dispatchCommand(s), openCommand(s), closeCommand(s), runsCommand(s), cancelRunCommand(s), workersCommand(s),
		walCommand(s, replay), replayCommand(s, replay), templateCommand(s), summaryCommand(s))
	return c
}

// boardArg splits SESSION/BOARD. Anything else is a usage error.
func boardArg(arg string) (sessionID, boardID string, err error) {
	sessionID, boardID, ok := strings.Cut(arg, "/")
	if !ok || sessionID == "" || boardID == "" {
		return "", "", exit.UsageError(fmt.Sprintf("%q names no board; write SESSION/BOARD, such as keeper/build", arg))
	}
	return sessionID, boardID, nil
}

// onBoard returns a RunE as Session.Connected does, for a command whose first argument
// names a board. do gets the other arguments.
func onBoard(s *session.Session, do func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
	args []string) error,
) func(*cobra.Command, []string) error {
	return s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		sessionID, boardID, err := boardArg(args[0])
		if err != nil {
			return err
		}
		return do(cmd, boardv1.NewBoardServiceClient(conn), sessionID, boardID, args[1:])
	})
}

// listCommand returns `quartet board list`.
func listCommand(s *session.Session) *cobra.Command {
	req := &boardv1.ListBoardsRequest{}
	cmd := &cobra.Command{
		Use: "list SESSION", Short: "List a session's boards", Args: input.Exactly("SESSION"), Aliases: []string{"ls"},
		Example: "  quartet board list keeper --all",
		RunE: session.Call(s, boardv1.NewBoardServiceClient, boardv1.BoardServiceClient.ListBoards,
			func(args []string) (*boardv1.ListBoardsRequest, error) {
				req.SessionId = args[0]
				return req, nil
			},
			func(p *output.Printer, resp *boardv1.ListBoardsResponse) {
				var rows [][]string
				for _, b := range resp.GetBoards() {
					rows = append(rows, []string{
						b.GetBoardId(), pbjson.EnumText(b.GetStatus()),
						stepCounts(b.GetCounts()), p.Time(b.GetUpdatedAt()), output.Flexible(b.GetTitle()),
					})
				}
				p.Table("no boards", []string{"BOARD", "STATUS", "STEPS", "UPDATED", "TITLE"}, rows)
				if resp.GetTruncated() {
					p.Printf("\n%d of %d; continue with --offset %d\n", len(rows), resp.GetTotal(),
						int(req.GetOffset())+len(rows))
				}
				p.Note(session.Hidden(&req.IncludeTerminal)())
			}),
	}
	cmd.Flags().BoolVar(&req.IncludeTerminal, "all", false, "Include ended ones")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "Maximum number of boards (default 50)")
	cmd.Flags().Int32Var(&req.Offset, "offset", 0, "Number of boards to skip")
	return cmd
}

// stepCounts lists how many steps have each status, without the zeros.
func stepCounts(n *boardv1.StepCounts) string {
	var parts []string
	for _, c := range []struct {
		n    int32
		what string
	}{
		{n.GetRunning(), "running"},
		{n.GetClaimed(), "claimed"},
		{n.GetReady(), "ready"},
		{n.GetPending(), "pending"},
		{n.GetBlocked(), "blocked"},
		{n.GetFailed(), "failed"},
		{n.GetCancelled(), "cancelled"},
		{n.GetCompleted(), "completed"},
	} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprint(c.n, " ", c.what))
		}
	}
	return strings.Join(parts, ", ")
}

// showCommand returns `quartet board show`.
func showCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION/BOARD", Short: "Draw a board", Args: input.Exactly("SESSION/BOARD"),
		Aliases: []string{"get"},
		Long: `Draw the graph of a board, each step below the steps that it needs:

  ✔ completed   ● running   ◐ claimed   ◇ ready   ○ pending
  ! blocked     ✗ failed    – cancelled`,
		Example: "  quartet board show keeper/build",
		RunE: onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
			_ []string,
		) error {
			resp, err := c.GetBoard(cmd.Context(), &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: boardID})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) { drawBoard(p, resp.GetBoard(), s.Now()) })
		}),
	}
}

// stepMarks has the mark and the colour of each status in a drawn board.
var stepMarks = map[boardv1.StepStatus]struct{ mark, colour string }{
	boardv1.StepStatus_STEP_STATUS_PENDING:   {"○", terminal.Dim},
	boardv1.StepStatus_STEP_STATUS_READY:     {"◇", terminal.Cyan},
	boardv1.StepStatus_STEP_STATUS_CLAIMED:   {"◐", terminal.Yellow},
	boardv1.StepStatus_STEP_STATUS_RUNNING:   {"●", terminal.Yellow},
	boardv1.StepStatus_STEP_STATUS_BLOCKED:   {"!", terminal.Violet},
	boardv1.StepStatus_STEP_STATUS_COMPLETED: {"✔", terminal.Green},
	boardv1.StepStatus_STEP_STATUS_FAILED:    {"✗", terminal.Red},
	boardv1.StepStatus_STEP_STATUS_CANCELLED: {"–", terminal.Dim},
}

// drawBoard draws a board: its state, and its graph with a note on each step.
func drawBoard(p *output.Printer, b *boardv1.Board, now time.Time) {
	p.Printf("%s  %s  %s  %s\n", p.Paint(terminal.Bold, b.GetSessionId()+"/"+b.GetBoardId()), boardState(p, b),
		stepCounts(b.GetCounts()),
		p.Paint(terminal.Dim, fmt.Sprint("revision ", b.GetRevision())))
	if b.GetTitle() != "" && b.GetTitle() != b.GetBoardId() {
		p.Printf("%s\n", terminal.Printable(output.Shorten(b.GetTitle(), p.Columns())))
	}
	d := b.GetDiagnostics()
	switch {
	case d.GetCompleteable():
		p.Printf("%s\n", p.Paint(terminal.Green, "all required steps are completed: complete the board"))
	case d.GetStalled():
		p.Printf("%s %s\n", p.Paint(terminal.Red, "stalled by"), strings.Join(d.GetStalledByStepIds(), ", "))
	}
	p.Printf("\n")
	steps := b.GetSteps()
	nodes := make([]node, len(steps))
	for i, s := range steps {
		nodes[i] = node{s.GetStepId(), s.GetDependsOnStepIds()}
	}
	lines, ok := graph(nodes)
	nameColumns, statusColumns := 0, len("completed")
	for _, l := range lines {
		if !ok { // too many edges for a picture: list the needed steps by name
			l.gutter = "\x00"
		}
		nameColumns = max(nameColumns, output.Width(l.gutter)+1+output.Width(nodes[l.node].id))
	}
	nameColumns = min(nameColumns, 60)
	for _, l := range lines {
		s := steps[l.node]
		m := stepMarks[s.GetStatus()]
		gutter, needs := l.gutter, ""
		if !ok {
			gutter, needs = "\x00", "needs "+strings.Join(s.GetDependsOnStepIds(), ", ")
			if len(s.GetDependsOnStepIds()) == 0 {
				needs = ""
			}
		}
		before, after, _ := strings.Cut(gutter, "\x00")
		pad := max(nameColumns-output.Width(before)-1-output.Width(after)-1-output.Width(s.GetStepId()), 0)
		status := pbjson.EnumText(s.GetStatus())
		head := p.Paint(terminal.Dim, before) + p.Paint(m.colour, m.mark) + p.Paint(terminal.Dim, after) + " " +
			s.GetStepId() + strings.Repeat(" ", pad)
		room := p.Columns() - nameColumns - statusColumns - 4
		line := head + "  " + p.Paint(m.colour, status)
		if note := terminal.Printable(output.Shorten(joined(needs, stepNote(s, now)), max(room, 20))); note != "" {
			line += strings.Repeat(" ", statusColumns-len(status)+2) + note
		}
		p.Printf("%s\n", line)
	}
}

// boardState returns the status of a board, in its colour, with its reason.
func boardState(p *output.Printer, b *boardv1.Board) string {
	colour := map[boardv1.BoardStatus]string{
		boardv1.BoardStatus_BOARD_STATUS_RUNNING:   terminal.Yellow,
		boardv1.BoardStatus_BOARD_STATUS_BLOCKED:   terminal.Violet,
		boardv1.BoardStatus_BOARD_STATUS_COMPLETED: terminal.Green,
		boardv1.BoardStatus_BOARD_STATUS_FAILED:    terminal.Red,
	}[b.GetStatus()]
	text := pbjson.EnumText(b.GetStatus())
	if b.GetTerminating() {
		text += ", ending"
	}
	if colour == "" {
		colour = terminal.Dim
	}
	if b.GetReason() != "" {
		return p.Paint(colour, text) + " (" + terminal.Printable(output.Shorten(b.GetReason(), 60)) + ")"
	}
	return p.Paint(colour, text)
}

// stepNote returns what matters about a step with its status: the title and, for
// example, its worker, its result or its reason.
func stepNote(s *boardv1.Step, now time.Time) string {
	title := s.GetTitle()
	if title == s.GetStepId() {
		title = ""
	}
	optional := ""
	if !s.GetRequired() {
		optional = "optional"
	}
	switch s.GetStatus() {
	case boardv1.StepStatus_STEP_STATUS_CLAIMED, boardv1.StepStatus_STEP_STATUS_RUNNING:
		return joined(title, "by "+s.GetClaimedByAgentId()+", "+now.Sub(s.GetUpdatedAt().AsTime()).Round(time.Second).
			String())
	case boardv1.StepStatus_STEP_STATUS_COMPLETED:
		return joined(title, s.GetResultSummary())
	case boardv1.StepStatus_STEP_STATUS_BLOCKED, boardv1.StepStatus_STEP_STATUS_FAILED,
		boardv1.StepStatus_STEP_STATUS_CANCELLED:
		return joined(title, s.GetReason(), s.GetResultSummary())
	case boardv1.StepStatus_STEP_STATUS_READY:
		return joined(title, "pool "+s.GetWorkerPoolId(), optional)
	case boardv1.StepStatus_STEP_STATUS_UNSPECIFIED, boardv1.StepStatus_STEP_STATUS_PENDING:
	}
	return joined(title, optional)
}

// joined joins the parts that are not empty.
func joined(parts ...string) string {
	var present []string
	for _, part := range parts {
		if part != "" {
			present = append(present, part)
		}
	}
	return strings.Join(present, " · ")
}

// watchCommand returns `quartet board watch`.
func watchCommand(s *session.Session) *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "watch SESSION/BOARD", Short: "Draw a board again after each change", Args: input.Exactly("SESSION/BOARD"),
		Long: `Draw the board, and draw it again after each line of its log, until the board has
ended, ^C or --timeout. -o json writes each state as a line.`,
		Example: "  quartet board watch keeper/build",
	}
	cmd.Flags().DurationVar(&limit, "timeout", 0, "Stop after this time; 0: never")
	cmd.RunE = onBoard(s, func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string,
		_ []string,
	) error {
		ctx, cancel := session.WithTimeout(cmd, limit)
		defer cancel()
		p := s.Printer(cmd)
		drawn := int64(-1)
		draw := func() (*boardv1.Board, error) {
			resp, err := c.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: boardID})
			if err != nil || resp.GetBoard().GetRevision() == drawn {
				return resp.GetBoard(), err
			}
			if s.JSON() {
				p.JSONLine(resp)
			} else {
				p.Clear(drawn < 0)
				drawBoard(p, resp.GetBoard(), s.Now())
			}
			drawn = resp.GetBoard().GetRevision()
			return resp.GetBoard(), p.Err()
		}
		err := watchWal(ctx, c, sessionID, draw)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return cmd
}

// watchWal calls draw, which draws and returns the board, now and after each message of the
// board's log, until the board has ended.
func watchWal(ctx context.Context, c boardv1.BoardServiceClient, sessionID string,
	draw func() (*boardv1.Board, error),
) error {
	b, err := draw()
	if err != nil {
		return err
	}
	stream, err := c.FollowWal(ctx, &boardv1.FollowWalRequest{
		SessionId: sessionID, WalName: b.GetWalName(),
		AfterWalSeq: b.GetRevision(),
	})
	if err != nil {
		return err
	}
	for !hasEnded(b.GetStatus()) {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if b, err = draw(); err != nil {
			return err
		}
	}
	return nil
}

// hasEnded reports whether a board with this status never changes again.
func hasEnded(s boardv1.BoardStatus) bool {
	return s == boardv1.BoardStatus_BOARD_STATUS_COMPLETED || s == boardv1.BoardStatus_BOARD_STATUS_FAILED ||
		s == boardv1.BoardStatus_BOARD_STATUS_CANCELLED
}
