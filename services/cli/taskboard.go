package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

func (ss *session) boardCommand() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "board", Short: "Boards: steps with dependencies, worked by many workers", Aliases: []string{"boards"}})
	c.Long = `A board is a graph of steps under one agent, its orchestrator, whose id is the
session of the board. Steps become ready when all that they need is completed;
workers claim them, one worker a step, and report. A board is named SESSION/BOARD.`
	c.Example = `  quartet board apply keeper board.yaml
  quartet board open keeper/build go --parallel 4
  quartet worker --pool go --handler ./run-step
  quartet board watch keeper/build`
	c.AddCommand(ss.boardApply(), ss.boardList(), ss.boardShow(), ss.boardWatch(), ss.boardInspect(),
		ss.boardEnd("complete"), ss.boardEnd("fail"), ss.boardEnd("cancel"), ss.boardBlock(), ss.boardReopen(), ss.boardStep(),
		ss.boardDispatch(), ss.boardOpen(), ss.boardClose(), ss.boardRuns(), ss.boardCancelRun(), ss.boardWorkers(),
		ss.boardWal(), ss.boardReplay(), ss.boardTemplate(), ss.boardSummary())
	return c
}

// boardArg splits SESSION/BOARD.
func boardArg(arg string) (sessionID, boardID string, err error) {
	sessionID, boardID, ok := strings.Cut(arg, "/")
	if !ok || sessionID == "" || boardID == "" {
		return "", "", usage(fmt.Sprintf("%q names no board; write SESSION/BOARD, as in keeper/build", arg))
	}
	return sessionID, boardID, nil
}

// onBoard is calls for a command whose first argument names a board.
func (ss *session) onBoard(do func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, args []string) error) func(*cobra.Command, []string) error {
	return ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		sessionID, boardID, err := boardArg(args[0])
		if err != nil {
			return err
		}
		return do(cmd, boardv1.NewBoardServiceClient(conn), sessionID, boardID, args[1:])
	})
}

func (ss *session) boardList() *cobra.Command {
	req := &boardv1.ListBoardsRequest{}
	cmd := &cobra.Command{
		Use: "list SESSION", Short: "List a session's boards", Args: exactly("SESSION"), Aliases: []string{"ls"},
		Example: "  quartet board list keeper --all",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.SessionId = args[0]
			resp, err := boardv1.NewBoardServiceClient(conn).ListBoards(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, b := range resp.GetBoards() {
					rows = append(rows, []string{b.GetBoardId(), short(b.GetStatus()), tally(b.GetCounts()), when(b.GetUpdatedAt()), printable(brief(b.GetTitle(), 60))})
				}
				p.table("no boards", []string{"BOARD", "STATUS", "STEPS", "UPDATED", "TITLE"}, rows)
				if resp.GetTruncated() {
					p.printf("\n%d of %d; --offset %d goes on\n", len(rows), resp.GetTotal(), int(req.GetOffset())+len(rows))
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeTerminal, "all", false, "Also those that ended")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "How many (default 50)")
	cmd.Flags().Int32Var(&req.Offset, "offset", 0, "Leave out as many")
	return cmd
}

// tally is how many steps stand where, without those that are none.
func tally(n *boardv1.StepCounts) string {
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

func (ss *session) boardShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION/BOARD", Short: "Draw a board", Args: exactly("SESSION/BOARD"), Aliases: []string{"get"},
		Long: `Draw the graph, each step below all that it needs:

  ✔ completed   ● running   ◐ claimed   ◇ ready   ○ pending
  ! blocked     ✗ failed    – cancelled`,
		Example: "  quartet board show keeper/build",
		RunE: ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
			resp, err := c.GetBoard(cmd.Context(), &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: boardID})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) { drawBoard(p, resp.GetBoard(), ss.now()) })
		}),
	}
}

var stepMarks = map[boardv1.StepStatus]struct{ mark, colour string }{
	boardv1.StepStatus_STEP_STATUS_PENDING:   {"○", dim},
	boardv1.StepStatus_STEP_STATUS_READY:     {"◇", cyan},
	boardv1.StepStatus_STEP_STATUS_CLAIMED:   {"◐", yellow},
	boardv1.StepStatus_STEP_STATUS_RUNNING:   {"●", yellow},
	boardv1.StepStatus_STEP_STATUS_BLOCKED:   {"!", violet},
	boardv1.StepStatus_STEP_STATUS_COMPLETED: {"✔", green},
	boardv1.StepStatus_STEP_STATUS_FAILED:    {"✗", red},
	boardv1.StepStatus_STEP_STATUS_CANCELLED: {"–", dim},
}

// drawBoard draws a board's graph with what is to be said of each step.
func drawBoard(p *printer, b *boardv1.Board, now time.Time) {
	p.printf("%s  %s  %s  %s\n", p.paint(bold, b.GetSessionId()+"/"+b.GetBoardId()), boardState(p, b), tally(b.GetCounts()),
		p.paint(dim, fmt.Sprint("revision ", b.GetRevision())))
	if b.GetTitle() != "" && b.GetTitle() != b.GetBoardId() {
		p.printf("%s\n", printable(brief(b.GetTitle(), p.columns())))
	}
	d := b.GetDiagnostics()
	switch {
	case d.GetCompleteable():
		p.printf("%s\n", p.paint(green, "every step that is required is done: complete it"))
	case d.GetStalled():
		p.printf("%s %s\n", p.paint(red, "stalled by"), strings.Join(d.GetStalledByStepIds(), ", "))
	}
	p.printf("\n")
	steps := b.GetSteps()
	nodes := make([]node, len(steps))
	for i, s := range steps {
		nodes[i] = node{s.GetStepId(), s.GetDependsOnStepIds()}
	}
	lines, ok := graph(nodes)
	names, states := 0, len("completed")
	for _, l := range lines {
		if !ok { // too many edges for a picture: names say more
			l.gutter = "\x00"
		}
		names = max(names, width(l.gutter)+1+width(nodes[l.node].id))
	}
	names = min(names, 60)
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
		pad := max(names-width(before)-1-width(after)-1-width(s.GetStepId()), 0)
		status := short(s.GetStatus())
		head := p.paint(dim, before) + p.paint(m.colour, m.mark) + p.paint(dim, after) + " " + s.GetStepId() + strings.Repeat(" ", pad)
		room := p.columns() - names - states - 4
		line := head + "  " + p.paint(m.colour, status)
		if note := printable(brief(joined(needs, stepNote(s, now)), max(room, 20))); note != "" {
			line += strings.Repeat(" ", states-len(status)+2) + note
		}
		p.printf("%s\n", line)
	}
}

func boardState(p *printer, b *boardv1.Board) string {
	colour := map[boardv1.BoardStatus]string{
		boardv1.BoardStatus_BOARD_STATUS_RUNNING: yellow, boardv1.BoardStatus_BOARD_STATUS_BLOCKED: violet,
		boardv1.BoardStatus_BOARD_STATUS_COMPLETED: green, boardv1.BoardStatus_BOARD_STATUS_FAILED: red,
	}[b.GetStatus()]
	text := short(b.GetStatus())
	if b.GetTerminating() {
		text += ", ending"
	}
	if colour == "" {
		colour = dim
	}
	if b.GetReason() != "" {
		return p.paint(colour, text) + " (" + printable(brief(b.GetReason(), 60)) + ")"
	}
	return p.paint(colour, text)
}

// stepNote is what matters of a step where it stands.
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
		return joined(title, "by "+s.GetClaimedByAgentId()+", "+now.Sub(s.GetUpdatedAt().AsTime()).Round(time.Second).String())
	case boardv1.StepStatus_STEP_STATUS_COMPLETED:
		return joined(title, s.GetResultSummary())
	case boardv1.StepStatus_STEP_STATUS_BLOCKED, boardv1.StepStatus_STEP_STATUS_FAILED, boardv1.StepStatus_STEP_STATUS_CANCELLED:
		return joined(title, s.GetReason(), s.GetResultSummary())
	case boardv1.StepStatus_STEP_STATUS_READY:
		return joined(title, "pool "+s.GetWorkerPoolId(), optional)
	case boardv1.StepStatus_STEP_STATUS_UNSPECIFIED, boardv1.StepStatus_STEP_STATUS_PENDING:
	}
	return joined(title, optional)
}

// joined puts a dash between what is there.
func joined(parts ...string) string {
	var there []string
	for _, part := range parts {
		if part != "" {
			there = append(there, part)
		}
	}
	return strings.Join(there, " · ")
}

func (ss *session) boardWatch() *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "watch SESSION/BOARD", Short: "Draw a board again whenever it changes", Args: exactly("SESSION/BOARD"),
		Long: `Draw the board, and draw it again for each line of its WAL, until the board has
ended, ^C or --timeout. -o json writes each picture as a line.`,
		Example: "  quartet board watch keeper/build",
	}
	cmd.Flags().DurationVar(&limit, "timeout", 0, "End after this time; 0: never")
	cmd.RunE = ss.onBoard(func(cmd *cobra.Command, c boardv1.BoardServiceClient, sessionID, boardID string, _ []string) error {
		ctx, cancel := timed(cmd, limit)
		defer cancel()
		p := newPrinter(cmd.OutOrStdout())
		drawn := int64(-1)
		draw := func() (*boardv1.Board, error) {
			resp, err := c.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: sessionID, BoardId: boardID})
			if err != nil || resp.GetBoard().GetRevision() == drawn {
				return resp.GetBoard(), err
			}
			if ss.output == formJSON {
				p.jsonLine(resp)
			} else {
				p.wipe(drawn < 0)
				drawBoard(p, resp.GetBoard(), ss.now())
			}
			drawn = resp.GetBoard().GetRevision()
			return resp.GetBoard(), p.err
		}
		err := watchWal(ctx, c, sessionID, draw)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return cmd
}

// watchWal calls draw for the state there is and for every change, until the
// board has ended.
func watchWal(ctx context.Context, c boardv1.BoardServiceClient, sessionID string, draw func() (*boardv1.Board, error)) error {
	b, err := draw()
	if err != nil {
		return err
	}
	stream, err := c.FollowWal(ctx, &boardv1.FollowWalRequest{SessionId: sessionID, WalName: b.GetWalName(), AfterWalSeq: b.GetRevision()})
	if err != nil {
		return err
	}
	for !over(b.GetStatus()) {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if b, err = draw(); err != nil {
			return err
		}
	}
	return nil
}

func over(s boardv1.BoardStatus) bool {
	return s == boardv1.BoardStatus_BOARD_STATUS_COMPLETED || s == boardv1.BoardStatus_BOARD_STATUS_FAILED || s == boardv1.BoardStatus_BOARD_STATUS_CANCELLED
}
