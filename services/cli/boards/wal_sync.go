package boards

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/output"
)

// walCopies keeps copies of a session's logs in a directory.
type walCopies struct {
	c        boardv1.BoardServiceClient
	replay   Replay
	session  string
	dir      string          // has a directory for the session
	compared map[string]bool // the logs whose copies were found to end as the server's log does at that line
}

// sync brings the copy of every log of the session up to date, and prints to p which logs had new lines.
func (w *walCopies) sync(ctx context.Context, p *output.Printer) error {
	dir := filepath.Join(w.dir, w.session)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for token := ""; ; {
		page, err := w.c.ListWals(ctx, &boardv1.ListWalsRequest{SessionId: w.session, PageSize: 500, PageToken: token})
		if err != nil {
			return err
		}
		for _, wal := range page.GetWals() {
			if err := w.syncOne(ctx, wal, root, p); err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(dir, wal.GetWalName()+walSuffix), err)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return p.Err()
		}
	}
}

// anew is what to do about a copy that the server's log does not continue.
const anew = "the copy was not changed. If the server was restored from a backup, or is another one, move the copy " +
	"away to get a new one; otherwise keep both: one of them was changed"

// syncOne appends to one copy the lines that it lacks, if they continue its lines; it makes the file if there is none,
// and cuts off an incomplete last line. It never changes a file that is not a copy of this log.
func (w *walCopies) syncOne(ctx context.Context, wal *boardv1.Wal, root *os.Root, p *output.Printer) error {
	name := wal.GetWalName() + walSuffix
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	local, err := w.replay.read(f)
	switch {
	case err != nil: // not a log, so it must not be overwritten
		return fmt.Errorf("%w; the copy was not changed. Move it away to get a new one", err)
	case local.Board != nil && local.Board.GetBoardId() != wal.GetBoardId():
		return fmt.Errorf(
			"it is the log of board %s, not of %s; the copy was not changed. Move it away to get a new one",
			local.Board.GetBoardId(), wal.GetBoardId())
	case local.Lines > wal.GetLastWalSeq():
		return fmt.Errorf("it has %s, and the server's log ends at line %d; %s",
			terminal.Count(local.Lines, "line", "lines"), wal.GetLastWalSeq(), anew)
	}
	end, err := f.Seek(-int64(local.Torn), io.SeekEnd)
	if err != nil {
		return err
	}
	if local.Lines == wal.GetLastWalSeq() {
		if err := w.compareEnds(ctx, wal, local.Lines, f, end); err != nil || local.Torn == 0 {
			return err
		}
		return errors.Join(f.Truncate(end), f.Sync())
	}
	return w.appendLines(ctx, wal, local.Lines, f, end, root, p)
}

// compareEnds compares the last line of a copy that lacks no lines with that line of the server's log, whose hash
// covers all lines before it. It returns an error if they differ. For each log it does so until they were equal once.
func (w *walCopies) compareEnds(ctx context.Context, wal *boardv1.Wal, lines int64, f *os.File, end int64) error {
	if lines == 0 || w.compared[wal.GetWalName()] {
		return nil
	}
	resp, err := w.c.ReadWal(ctx, &boardv1.ReadWalRequest{
		SessionId: w.session, WalName: wal.GetWalName(),
		AfterWalSeq: lines - 1, Limit: 1,
	})
	if err != nil {
		return err
	}
	want := resp.GetLines()
	got := make([]byte, min(int64(len(want)), end))
	if _, err := f.ReadAt(got, end-int64(len(got))); err != nil {
		return err
	}
	if len(want) == 0 || !bytes.Equal(got, want) { // none: the log was restored meanwhile
		return fmt.Errorf("line %d is not the one of the server's log; %s", lines, anew)
	}
	w.compared[wal.GetWalName()] = true
	return nil
}

// appendLines appends the server's lines after line number lines, at the byte end. They are collected in a file beside
// the copy, and the copy is changed only after they were found to continue it.
func (w *walCopies) appendLines(ctx context.Context, wal *boardv1.Wal, lines int64, f *os.File, end int64,
	root *os.Root, p *output.Printer,
) error {
	name := wal.GetWalName() + walSuffix
	part, err := root.OpenFile("."+name+".part", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(part.Close(), root.Remove("."+name+".part")) }()
	last, err := copyWal(ctx, w.c, w.session, wal.GetWalName(), lines, part)
	if err != nil {
		return err
	}
	size, err := part.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	both, err := w.replay.read(io.MultiReader(io.NewSectionReader(f, 0, end), io.NewSectionReader(part, 0, size)))
	switch {
	case err != nil:
		return fmt.Errorf("the server's lines from %d on do not continue it: %w; %s", lines+1, err, anew)
	case both.Lines != last || both.Torn > 0:
		return fmt.Errorf("the server sent %s and %s, and line %d as the last one; try again",
			terminal.Count(both.Lines-lines, "line", "lines"), terminal.Count(both.Torn, "byte", "bytes"), last)
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	if _, err := io.Copy(io.NewOffsetWriter(f, end), io.NewSectionReader(part, 0, size)); err != nil {
		return err
	}
	w.compared[wal.GetWalName()] = true
	p.Printf("%s: %s\n", name, terminal.Count(last, "line", "lines"))
	return f.Sync()
}
