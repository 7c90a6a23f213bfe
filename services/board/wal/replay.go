package wal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// Registry decodes the events of the board plane.
var Registry = journal.NewRegistry(boardv1.File_quartet_board_v1_board_event_proto)

// Result is the result of a replay.
type Result struct {
	// Board is the board after the last complete line; nil if there is none.
	Board *boardv1.Board
	// Lines is how many lines were replayed.
	Lines int64
	// Torn is how many bytes follow them that are no complete line, because a write or
	// a copy was interrupted.
	Torn int
}

// Replay returns a board from its WAL and from nothing else (SPEC B1). A log that was
// cut off at any byte gives the board after its last complete line, and Torn. A line
// that is missing, was changed, or cannot follow the lines before it is an error with
// reason STORAGE that names it; the result then has the board before that line.
func Replay(r io.Reader) (Result, error) {
	p := replayer{}
	in := bufio.NewReaderSize(r, 64<<10)
	offset := int64(0)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return p.result(0), err
		}
		complete := err == nil
		text := bytes.TrimSuffix(line, []byte("\n"))
		if len(text) > 0 || complete {
			if wrong := p.addLine(text); wrong != nil {
				if !complete {
					return p.result(len(line)), nil
				}
				return p.result(0), fault.Storage.Newf("line %d, at byte %d: %v", p.lines+1, offset, wrong).
					With("line", strconv.FormatInt(p.lines+1, 10)).With("byte", strconv.FormatInt(offset, 10)).
					WithCause(wrong)
			}
		}
		offset += int64(len(line))
		if !complete {
			return p.result(0), nil
		}
	}
}

// replayer replays lines into a board.
type replayer struct {
	b     *model.Board // nil before the first line
	lines int64        // that were replayed
	hash  Hash         // of the last of them
}

// result returns the board so far.
func (p *replayer) result(torn int) Result {
	out := Result{Lines: p.lines, Torn: torn}
	if p.b != nil {
		out.Board = p.b.WithSteps(nil)
	}
	return out
}

// addLine replays one line, or returns what is wrong with it.
func (p *replayer) addLine(line []byte) error {
	body, hash, ok := splitHash(line)
	if !ok {
		return errors.New("it has no hash at its end, so it is cut off or no line of a WAL")
	}
	raw, err := journal.ParseLine(line)
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	if next := uint64(p.lines) + 1; raw.WalSeq != next {
		if raw.WalSeq > next {
			return fmt.Errorf("it has wal_seq %d; %d to %d are missing", raw.WalSeq, next, raw.WalSeq-1)
		}
		return fmt.Errorf("it has wal_seq %d, and %d should follow", raw.WalSeq, next)
	}
	ev, err := raw.Decode(Registry)
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	before := p.hash
	if p.b == nil {
		first, ok := ev.Payload.(*boardv1.TaskCreated)
		if !ok {
			return fmt.Errorf("a WAL begins with task_created, not with %s", ev.Type)
		}
		before = FirstHash(ev.SessionID, first.GetWalName())
	}
	if chainHash(before, body) != hash {
		return errors.New("its hash is wrong: it was changed, or does not belong behind the line before it")
	}
	if p.b == nil {
		first, _ := ev.Payload.(*boardv1.TaskCreated)
		p.b = model.NewBoard(model.BoardKey{Session: ev.SessionID, WAL: first.GetWalName()}, ev.TaskID)
	}
	if ev.SessionID != p.b.Key.Session || ev.TaskID != p.b.ID {
		return fmt.Errorf("it is about board %s of session %s", ev.TaskID, ev.SessionID)
	}
	if err := checkFollows(p.b, ev); err != nil {
		return err
	}
	if err := p.b.Apply(ev); err != nil {
		return err
	}
	p.b.AddLine(ev)
	p.lines, p.hash = p.lines+1, hash
	return nil
}
