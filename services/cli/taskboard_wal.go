package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// WAL is what a board's log says: see Servers.Replay.
type WAL struct {
	Board *boardv1.Board // nil: there is no whole line
	Lines int64
	Torn  int // bytes behind the last whole line
}

// walSuffix is a log's name on a disk, as S2 has it.
const walSuffix = ".wal.jsonl"

func (ss *session) boardWal() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "wal", Short: "The logs of boards: list, read, follow, copy, check"})
	c.AddCommand(ss.walList(), ss.walRead(), ss.walSync(), ss.walVerify())
	return c
}

func (ss *session) walList() *cobra.Command {
	req := &boardv1.ListWalsRequest{}
	var pages paging
	cmd := &cobra.Command{
		Use: "list SESSION", Short: "List a session's logs", Args: exactly("SESSION"), Aliases: []string{"ls"}, Example: "  quartet board wal list keeper",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.SessionId, req.PageSize, req.PageToken = args[0], pages.size, pages.token
			resp, err := boardv1.NewBoardServiceClient(conn).ListWals(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, w := range resp.GetWals() {
					rows = append(rows, []string{w.GetWalName(), w.GetBoardId(), short(w.GetStatus()), fmt.Sprint(w.GetLastWalSeq()), w.GetWalPath()})
				}
				p.table("no boards were made", []string{"WAL", "BOARD", "STATUS", "LINES", "PATH"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	pages.flags(cmd)
	return cmd
}

func (ss *session) walRead() *cobra.Command {
	var follow bool
	var after int64
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "read SESSION WAL", Short: "Write a log to stdout, as it is", Args: exactly("SESSION", "WAL"),
		Long: `Write a board's log: JSON Lines, a line for each event. With --follow until the
board has ended, ^C or --timeout.`,
		Example: "  quartet board wal read keeper build > build.wal.jsonl\n  quartet board wal read keeper build --follow",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Wait for more")
	cmd.Flags().Int64Var(&after, "after", 0, "Only the lines behind this wal_seq")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --follow: end after this time; 0: never")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		c := boardv1.NewBoardServiceClient(conn)
		if !follow {
			_, err := copyWal(cmd.Context(), c, args[0], args[1], after, cmd.OutOrStdout())
			return err
		}
		ctx, cancel := timed(cmd, limit)
		defer cancel()
		stream, err := c.FollowWal(ctx, &boardv1.FollowWalRequest{SessionId: args[0], WalName: args[1], AfterWalSeq: after})
		if err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(m.GetLines()); err != nil {
				return err
			}
		}
	})
	return cmd
}

// copyWal writes the lines that are there and gives the number of the last.
func copyWal(ctx context.Context, c boardv1.BoardServiceClient, sessionID, wal string, after int64, to io.Writer) (int64, error) {
	for {
		resp, err := c.ReadWal(ctx, &boardv1.ReadWalRequest{SessionId: sessionID, WalName: wal, AfterWalSeq: after, Limit: 2000})
		if err != nil {
			return after, err
		}
		if _, err := to.Write(resp.GetLines()); err != nil {
			return after, err
		}
		if len(resp.GetLines()) > 0 {
			after = resp.GetLastWalSeq()
		}
		if !resp.GetTruncated() {
			return after, nil
		}
	}
}

func (ss *session) walSync() *cobra.Command {
	var follow bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "sync SESSION DIR", Short: "Keep copies of a session's logs in a directory", Args: exactly("SESSION", "DIR"),
		Long: `Bring DIR/SESSION/<wal>.wal.jsonl up to date for every board of the session: what a
copy has is checked and kept, a line that was cut off is written anew, and a copy
that says something else is refused and left alone. With --follow again and again.`,
		Example: "  quartet board wal sync keeper ./tasks --follow",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Go on until ^C or --timeout")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --follow: end after this time; 0: never")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		ctx, cancel := timed(cmd, limit)
		defer cancel()
		c := boardv1.NewBoardServiceClient(conn)
		for {
			if err := ss.syncWals(ctx, c, args[0], args[1], newPrinter(cmd.ErrOrStderr())); err != nil && ctx.Err() == nil {
				return err
			}
			if !follow {
				return nil
			}
			again := time.NewTimer(time.Second)
			select {
			case <-ctx.Done():
				again.Stop()
				return nil
			case <-again.C:
			}
		}
	})
	return cmd
}

// syncWals brings every log of a session up to date.
func (ss *session) syncWals(ctx context.Context, c boardv1.BoardServiceClient, sessionID, dir string, p *printer) error {
	if err := os.MkdirAll(filepath.Join(dir, sessionID), 0o750); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Join(dir, sessionID))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for token := ""; ; {
		page, err := c.ListWals(ctx, &boardv1.ListWalsRequest{SessionId: sessionID, PageSize: 500, PageToken: token})
		if err != nil {
			return err
		}
		for _, w := range page.GetWals() {
			if err := ss.syncWal(ctx, c, sessionID, w, root, p); err != nil {
				return fmt.Errorf("%s%s: %w", w.GetWalName(), walSuffix, err)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return p.err
		}
	}
}

func (ss *session) syncWal(ctx context.Context, c boardv1.BoardServiceClient, sessionID string, w *boardv1.Wal, root *os.Root, p *printer) error {
	f, err := root.OpenFile(w.GetWalName()+walSuffix, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	has, err := ss.replayed(f)
	if err != nil {
		return err // it is not the log of this board; nobody overwrites what he does not know
	}
	if has.Board != nil && has.Board.GetBoardId() != w.GetBoardId() {
		return fmt.Errorf("it is the log of board %s, not of %s", has.Board.GetBoardId(), w.GetBoardId())
	}
	if has.Torn == 0 && has.Lines == w.GetLastWalSeq() {
		return nil
	}
	end, err := f.Seek(-int64(has.Torn), io.SeekEnd)
	if err != nil {
		return err
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	last, err := copyWal(ctx, c, sessionID, w.GetWalName(), has.Lines, f)
	if err != nil {
		return err
	}
	p.printf("%s%s: %d lines\n", w.GetWalName(), walSuffix, last)
	return f.Sync()
}

func (ss *session) walVerify() *cobra.Command {
	cmd := ss.boardReplay()
	cmd.Use, cmd.Short = "verify FILE", "Check a copy of a log, without a server"
	cmd.Example = "  quartet board wal verify ./tasks/keeper/build.wal.jsonl"
	return cmd
}

// boardReplay needs no server: the file is all there is.
func (ss *session) boardReplay() *cobra.Command {
	return &cobra.Command{
		Use: "replay FILE", Short: "Draw the board that a log makes, without a server", Args: exactly("FILE"),
		Long: `Read a board's log, check that every line follows from the one before, and draw the
board it makes. A log that was cut off gives the board as of its last whole line. A
line that is missing or was changed is named, and the exit code is 1. "-" is stdin.`,
		Example: "  quartet board replay build.wal.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usage(err.Error())
				}
				defer f.Close()
				in = f
			}
			wal, err := ss.replayed(in)
			if err != nil {
				return err
			}
			if wal.Board == nil {
				return errors.New("the log has no whole line")
			}
			return ss.show(cmd, &boardv1.GetBoardResponse{Board: wal.Board}, func(p *printer) {
				p.printf("%d lines, each follows from the one before\n", wal.Lines)
				if wal.Torn > 0 {
					p.printf("%s\n", p.paint(yellow, fmt.Sprintf("cut off: %d bytes behind them are no whole line", wal.Torn)))
				}
				p.printf("\n")
				drawBoard(p, wal.Board, ss.now())
			})
		},
	}
}

// replayed reads a file, whose faults no server mends.
func (ss *session) replayed(in io.Reader) (WAL, error) {
	if ss.replay == nil {
		return WAL{}, errors.New("this build has no boards")
	}
	wal, err := ss.replay(in)
	if err != nil {
		err = errors.New(fault.From(err).Message())
	}
	return wal, err
}
