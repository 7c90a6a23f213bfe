package board

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/wal"
)

// Limits of one response.
const (
	maxWALLines = 2000
	maxWALBytes = 1 << 20 // a response has one line more at most
	walChunk    = 500     // lines that are read from the journal at once
)

// walPage is a page of a WAL.
type walPage struct {
	lines []byte // complete lines
	last  int64  // number of the last of lines
	end   int64  // number of the last line of the WAL
	ended bool   // the board has ended, so no line follows end
}

// readLines reads lines of a WAL after line number after, at most limit lines and about maxWALBytes.
func (s *Service) readLines(ctx context.Context, k model.BoardKey, after int64, limit int) (walPage, error) {
	p := walPage{last: after}
	from, id := s.checkpoints.Before(k, after), ""
	seq, hash := from.Seq, from.Hash
	for {
		var at []uint64
		_, err := viewSession(ctx, s, model.Key{Namespace: k.Namespace, ID: k.Session},
			func(st *model.State) (struct{}, error) {
				b, err := st.FindWAL(k)
				if err != nil {
					return struct{}{}, err
				}
				id = b.ID
				// Lines up to after are read only for their hashes.
				n := min(walChunk, int(min(b.Lines-seq, after-seq+int64(limit))))
				at = nil
				if n > 0 {
					at = b.LinePositions(seq, n)
				}
				p.end, p.ended = b.Lines, model.Ended(b.Status)
				return struct{}{}, nil
			})
		if err != nil {
			return p, err
		}
		if len(at) == 0 {
			break
		}
		events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.Session), at)
		if err != nil {
			return p, err
		}
		if slices.ContainsFunc(events, (*journal.Event).Removed) {
			return p, walRemoved(k, id)
		}
		full := false
		for _, ev := range events {
			if full = len(p.lines) >= maxWALBytes || p.last-after >= int64(limit); full {
				break
			}
			var line []byte
			if line, hash, err = wal.AppendLine(nil, hash, seq+1, ev); err != nil {
				return p, fault.Internal(err)
			}
			seq++
			if seq > after {
				p.lines, p.last = append(p.lines, line...), seq
			}
		}
		if full {
			break
		}
	}
	if seq > from.Seq {
		s.checkpoints.Add(k, wal.Checkpoint{Seq: seq, Hash: hash})
	}
	return p, nil
}

// walRemoved returns HISTORY_REMOVED for the WAL of a board that ended long ago. Its lines are removed one after the
// other, and the lines that are left cannot be verified without the others.
func walRemoved(k model.BoardKey, boardID string) error {
	return fault.HistoryRemoved.Newf("board %q ended before history is kept (history-days): its log %q was removed, "+
		"and with it its steps; ListBoards still has how it ended", boardID, k.WAL).
		With("session_id", k.Session).With("board_id", boardID).With("wal_name", k.WAL)
}

// ReadWal reads lines of a WAL, of an active or ended board.
func (s *Service) ReadWal(ctx context.Context, req *boardv1.ReadWalRequest) (*boardv1.ReadWalResponse, error) {
	if err := fault.First(s.operate(ctx, "board_get", req.GetSessionId()), fault.Name("wal_name", req.GetWalName()),
		checkAfter(req.GetAfterWalSeq())); err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit < 0 || limit > maxWALLines:
		return nil, fault.LimitExceeded.Newf("limit is %d; it must be 0 to %d", limit, maxWALLines).
			WithField("limit", "must be 0 to 2000")
	case limit == 0:
		limit = 500
	}
	k := model.BoardKey{Namespace: rpc.ActorFrom(ctx).Namespace, Session: req.GetSessionId(), WAL: req.GetWalName()}
	p, err := s.readLines(ctx, k, req.GetAfterWalSeq(), limit)
	if err != nil {
		return nil, err
	}
	return &boardv1.ReadWalResponse{Lines: p.lines, LastWalSeq: p.last, Truncated: p.last < p.end, Ended: p.ended}, nil
}

// checkAfter validates after_wal_seq.
func checkAfter(n int64) error {
	if n < 0 {
		return fault.InvalidArgument.Newf("after_wal_seq is %d; it must be at least 0", n).WithField("after_wal_seq",
			"must be at least 0")
	}
	return nil
}

// FollowWal streams lines as they are written. It ends after the last line of the
// board.
func (s *Service) FollowWal(req *boardv1.FollowWalRequest,
	stream grpc.ServerStreamingServer[boardv1.FollowWalResponse],
) error {
	ctx := stream.Context()
	if err := fault.First(s.operate(ctx, "board_get", req.GetSessionId()), fault.Name("wal_name", req.GetWalName()),
		checkAfter(req.GetAfterWalSeq())); err != nil {
		return err
	}
	k := model.BoardKey{Namespace: rpc.ActorFrom(ctx).Namespace, Session: req.GetSessionId(), WAL: req.GetWalName()}
	id, err := viewSession(ctx, s, model.Key{Namespace: k.Namespace, ID: k.Session},
		func(st *model.State) (string, error) {
			b, err := st.FindWAL(k)
			if err != nil {
				return "", err
			}
			return b.ID, nil
		})
	if err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // the header tells the caller that the WAL exists
		return err
	}
	changes := s.watches.Subscribe(boardWatch{k.Namespace, k.Session, id})
	defer changes.Close()
	after := req.GetAfterWalSeq()
	for {
		p, err := s.readLines(ctx, k, after, maxWALLines)
		if err != nil {
			return err
		}
		if len(p.lines) > 0 {
			if err := stream.Send(&boardv1.FollowWalResponse{Lines: p.lines, LastWalSeq: p.last}); err != nil {
				return err
			}
		}
		after = p.last
		if p.last < p.end {
			continue
		}
		if p.ended {
			return nil
		}
		select {
		case <-changes.C():
		case <-ctx.Done():
			return ctx.Err()
		case <-s.watches.Stopped():
			return fault.NotReady.New("the server stops; follow again after the last line")
		}
	}
}

// ListWals reads the WALs of a session in the order of creation.
func (s *Service) ListWals(ctx context.Context, req *boardv1.ListWalsRequest) (*boardv1.ListWalsResponse, error) {
	if err := s.operate(ctx, "board_list", req.GetSessionId()); err != nil {
		return nil, err
	}
	list, err := page.Read("wals", req)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	return viewSession(ctx, s, k, func(st *model.State) (*boardv1.ListWalsResponse, error) {
		out := &boardv1.ListWalsResponse{}
		se := st.Sessions[k]
		if se == nil {
			return out, nil
		}
		listed := list.After == ""
		for _, b := range se.WALs {
			switch {
			case !listed:
				listed = b.Key.WAL == list.After
				continue
			case len(out.Wals) == list.Size:
				out.NextPageToken = list.Next(out.Wals[list.Size-1].GetWalName())
				return out, nil
			}
			out.Wals = append(out.Wals, &boardv1.Wal{
				WalName: b.Key.WAL, BoardId: b.ID, WalPath: model.WalPath(b.Key),
				LastWalSeq: b.Lines, Status: b.Status,
			})
		}
		return out, nil
	})
}

// replayEnded returns an ended board with its steps, which it replays from the WAL and keeps nowhere. It returns
// HISTORY_REMOVED if lines were removed.
func (s *Service) replayEnded(ctx context.Context, k model.BoardKey) (*model.Board, error) {
	var at []uint64
	id, err := viewSession(ctx, s, model.Key{Namespace: k.Namespace, ID: k.Session},
		func(st *model.State) (string, error) {
			b, err := st.FindWAL(k)
			if err != nil {
				return "", err
			}
			at = b.LinePositions(0, int(b.Lines))
			return b.ID, nil
		})
	if err != nil {
		return nil, err
	}
	b := model.NewBoard(k, id)
	for len(at) > 0 {
		n := min(len(at), walChunk)
		events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.Session), at[:n])
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(events, (*journal.Event).Removed) {
			return nil, walRemoved(k, id)
		}
		for _, ev := range events {
			b.AddLine(ev)
			if err := b.Apply(ev); err != nil {
				b.Damaged = err
				return nil, b.CheckUsable()
			}
		}
		at = at[n:]
	}
	return b, nil
}
