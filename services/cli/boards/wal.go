package boards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// WAL is the result of reading a board's log.
type WAL struct {
	Board *boardv1.Board // the board after the last complete line; nil if there is none
	Lines int64          // complete lines
	Torn  int            // bytes after the last complete line
}

// Replay reads a board's log and checks that every line follows from the one before.
type Replay func(log io.Reader) (WAL, error)

// walSuffix ends the file name of a log.
const walSuffix = ".wal.jsonl"

// walCommand returns `quartet board wal`.
func walCommand(s *session.Session, replay Replay) *cobra.Command {
	c := input.Group(&cobra.Command{Use: "wal", Short: "The logs of boards: list, read, follow, copy, check"})
	c.AddCommand(listWals(s), readWal(s), syncCommand(s, replay), verifyCommand(s, replay))
	return c
}

// listWals returns the command `quartet board wal list SESSION`.
func listWals(s *session.Session) *cobra.Command {
	req := &boardv1.ListWalsRequest{}
	cmd := &cobra.Command{
		Use: "list SESSION", Short: "List a session's logs", Args: input.Exactly("SESSION"), Aliases: []string{"ls"},
		Example: "  quartet board wal list keeper",
	}
	return session.List(s, cmd, boardv1.NewBoardServiceClient, boardv1.BoardServiceClient.ListWals,
		func(args []string) (*boardv1.ListWalsRequest, error) {
			req.SessionId = args[0]
			return req, nil
		},
		(*boardv1.ListWalsResponse).GetWals, "no boards",
		[]string{"WAL", "BOARD", "STATUS", "LINES", "PATH"},
		func(p *output.Printer, w *boardv1.Wal) []string {
			return []string{
				w.GetWalName(), w.GetBoardId(), pbjson.EnumText(w.GetStatus()),
				fmt.Sprint(w.GetLastWalSeq()), w.GetWalPath(),
			}
		})
}

// readWal returns `quartet board wal read`.
func readWal(s *session.Session) *cobra.Command {
	var follow bool
	var after int64
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "read SESSION WAL", Short: "Write a log to stdout unchanged", Args: input.Exactly("SESSION", "WAL"),
		Long: `Write a board's log to stdout: JSON Lines, a line per event. With --follow, wait for
further lines until the board has ended, ^C or --timeout.`,
		Example: "  quartet board wal read keeper build > build.wal.jsonl\n  quartet board wal read keeper build " +
			"--follow",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Wait for further lines")
	cmd.Flags().Int64Var(&after, "after", 0, "Only the lines after this wal_seq")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --follow: stop after this time; 0: never")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		c := boardv1.NewBoardServiceClient(conn)
		if !follow {
			_, err := copyWal(cmd.Context(), c, args[0], args[1], after, cmd.OutOrStdout())
			return err
		}
		ctx, cancel := session.WithTimeout(cmd, limit)
		defer cancel()
		stream, err := c.FollowWal(ctx, &boardv1.FollowWalRequest{
			SessionId: args[0], WalName: args[1],
			AfterWalSeq: after,
		})
		if err != nil {
			return err
		}
		err = session.Receive(stream, func(m *boardv1.FollowWalResponse) error {
			_, err := cmd.OutOrStdout().Write(m.GetLines())
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return cmd
}

// copyWal writes the lines of a log after the line number after to w, and returns the number
// of the last line written; after if there was none.
func copyWal(ctx context.Context, c boardv1.BoardServiceClient, sessionID, wal string, after int64, w io.Writer) (int64,
	error,
) {
	for {
		resp, err := c.ReadWal(ctx, &boardv1.ReadWalRequest{
			SessionId: sessionID, WalName: wal, AfterWalSeq: after,
			Limit: 2000,
		})
		if err != nil {
			return after, err
		}
		if _, err := w.Write(resp.GetLines()); err != nil {
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

// syncCommand returns `quartet board wal sync`.
func syncCommand(s *session.Session, replay Replay) *cobra.Command {
	var follow bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "sync SESSION DIR", Short: "Keep copies of a session's logs in a directory",
		Args: input.Exactly("SESSION", "DIR"),
		Long: `Bring DIR/SESSION/<wal>.wal.jsonl up to date for every board of the session. The
lines of an existing copy are checked and kept, and an incomplete last line is written
again. New lines are added only if they continue the chain of hashes of those that are
there. A file that is not a copy of that log, or that the server's log does not
continue, is reported and not changed. With --follow this is repeated every second.`,
		Example: "  quartet board wal sync keeper ./tasks --follow",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Repeat until ^C or --timeout")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "With --follow: stop after this time; 0: never")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		ctx, cancel := session.WithTimeout(cmd, limit)
		defer cancel()
		c := boardv1.NewBoardServiceClient(conn)
		copies := walCopies{c: c, replay: replay, session: args[0], dir: args[1], compared: map[string]bool{}}
		for {
			if err := copies.sync(ctx, output.New(cmd.ErrOrStderr())); err != nil && ctx.Err() == nil {
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

// verifyCommand returns `quartet board wal verify`, another name of `quartet board replay`.
func verifyCommand(s *session.Session, replay Replay) *cobra.Command {
	cmd := replayCommand(s, replay)
	cmd.Use, cmd.Short = "verify FILE", "Check a copy of a log, without a server"
	cmd.Example = "  quartet board wal verify ./tasks/keeper/build.wal.jsonl"
	return cmd
}

// replayCommand returns `quartet board replay`, which needs no server.
func replayCommand(s *session.Session, replay Replay) *cobra.Command {
	return &cobra.Command{
		Use: "replay FILE", Short: "Draw the board that a log describes, without a server", Args: input.Exactly("FILE"),
		Long: `Read a board's log, check that every line follows from the one before, and draw the
board after the last line. An incomplete last line is ignored and reported. If a
line is missing or was changed, the error names it and the exit code is 1. "-" reads
stdin. With -o json, lines and tornBytes are the number of complete lines and of bytes
after them.`,
		Example: "  quartet board replay build.wal.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return exit.UsageError(err.Error())
				}
				defer f.Close()
				in = f
			}
			wal, err := replay.read(in)
			if err != nil {
				return err
			}
			if wal.Board == nil {
				return errors.New("the log has no complete line")
			}
			shown, err := wal.document()
			if err != nil {
				return err
			}
			return s.Show(cmd, shown, func(p *output.Printer) {
				p.Printf("%s, each follows from the one before\n", terminal.Count(wal.Lines, "line", "lines"))
				if wal.Torn > 0 {
					p.Printf("%s\n", p.Paint(terminal.Yellow, fmt.Sprintf("cut off: %s after them, no complete line",
						terminal.Count(wal.Torn, "byte", "bytes"))))
				}
				p.Printf("\n")
				drawBoard(p, wal.Board, s.Now())
			})
		},
	}
}

// document returns the result as -o json writes it: the board as in GetBoard, the number of
// lines, and how many bytes after them are no complete line.
func (w WAL) document() (*structpb.Struct, error) {
	text, err := protojson.Marshal(&boardv1.GetBoardResponse{Board: w.Board})
	if err != nil {
		return nil, err
	}
	out := &structpb.Struct{}
	if err := protojson.Unmarshal(text, out); err != nil {
		return nil, err
	}
	out.Fields["lines"] = structpb.NewNumberValue(float64(w.Lines))
	out.Fields["tornBytes"] = structpb.NewNumberValue(float64(w.Torn))
	return out, nil
}

// read calls replay. Its errors are about a local file, so they carry no reason
// and no advice about a server.
func (replay Replay) read(in io.Reader) (WAL, error) {
	if replay == nil {
		return WAL{}, errors.New("this binary has no boards")
	}
	wal, err := replay(in)
	if err != nil {
		err = errors.New(fault.From(err).Message())
	}
	return wal, err
}
