package board

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
)

// A board's WAL is JSON Lines with the fields of S2-041 to S2-051. It is made
// from the journal's events, so it is always as far as they are, and is the
// same whenever it is made. Each line ends with a hash of itself and of the
// line before it (the name of the log before the first), so that a line that
// was changed, left out or put in is found (SPEC B1).

// hashSize is how much of a SHA-256 a line carries: enough against accidents
// and against edits that do not write all that follows anew.
const hashSize = 16

type chainHash [hashSize]byte

// firstHash is what the first line is chained to.
func firstHash(session, wal string) chainHash {
	sum := sha256.Sum256([]byte(session + "/" + wal))
	return chainHash(sum[:hashSize])
}

const hashField = `,"hash":"`

// appendWAL appends an event as line seq.
func appendWAL(dst []byte, before chainHash, seq int64, ev *journal.Event) ([]byte, chainHash, error) {
	start := len(dst)
	dst = append(dst, `{"wal_seq":`...)
	dst = appendInt(dst, seq)
	for _, f := range [...]struct{ name, value string }{
		{`,"session_id":`, ev.SessionID}, {`,"event_id":`, ev.ID}, {`,"event_type":`, ev.Type},
		{`,"actor_agent_id":`, ev.ActorAgentID}, {`,"actor_run_id":`, ev.ActorRunID}, {`,"task_id":`, ev.TaskID},
	} {
		dst = journal.AppendString(append(dst, f.name...), f.value)
	}
	if ev.StepID != "" {
		dst = journal.AppendString(append(dst, `,"step_id":`...), ev.StepID)
	}
	dst = append(dst, `,"payload":`...)
	dst, err := pbjson.Append(dst, ev.Payload)
	if err != nil {
		return nil, before, err
	}
	dst = journal.AppendTime(append(dst, `,"created_at":`...), ev.CreatedAt)
	hash := chained(before, dst[start:])
	dst = hex.AppendEncode(append(dst, hashField...), hash[:])
	return append(dst, '"', '}', '\n'), hash, nil
}

// chained is the hash of a line, given without its hash.
func chained(before chainHash, line []byte) chainHash {
	h := sha256.New()
	h.Write(before[:])
	h.Write(line)
	var sum [sha256.Size]byte
	return chainHash(h.Sum(sum[:0])[:hashSize])
}

// chains remembers the hash of some line of each WAL that was read last, so
// that who goes on reading need not begin at the first. Its zero value works.
type chains struct {
	mu   sync.Mutex
	at   map[boardKey][]knot
	keys []boardKey
}

type knot struct {
	seq  int64
	hash chainHash
}

const (
	keptChains = 256
	keptLinks  = 8
)

// from is the last known line at or before one.
func (c *chains) from(k boardKey, after int64) knot {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := knot{0, firstHash(k.session, k.wal)}
	for _, l := range c.at[k] {
		if l.seq <= after && l.seq > best.seq {
			best = l
		}
	}
	return best
}

func (c *chains) keep(k boardKey, l knot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[boardKey][]knot{}
	}
	links, known := c.at[k]
	if !known {
		if len(c.keys) == keptChains {
			delete(c.at, c.keys[0])
			c.keys = c.keys[1:]
		}
		c.keys = append(c.keys, k)
	}
	if len(links) == keptLinks {
		links = links[1:]
	}
	c.at[k] = append(links, l)
}

// Limits of one answer.
const (
	maxWALLines = 2000
	maxWALBytes = 1 << 20
	walChunk    = 500 // lines that are read at once
)

// walPiece is some lines of a WAL.
type walPiece struct {
	lines []byte
	last  int64 // its last line
	end   int64 // the log's last line
	ended bool
}

// walOf reads lines behind one, at most most and about maxWALBytes.
func (s *Service) walOf(ctx context.Context, k boardKey, after int64, most int) (walPiece, error) {
	p := walPiece{last: after}
	from := s.chains.from(k, after)
	seq, hash := from.seq, from.hash
	for {
		var at []uint64
		_, err := journalView(ctx, s, key{k.namespace, k.session}, func(st *State) (struct{}, error) {
			b, err := st.wal(k)
			if err != nil {
				return struct{}{}, err
			}
			// What lies before after is read for its hashes only.
			n := min(walChunk, int(min(b.lines-seq, after-seq+int64(most))))
			at = nil
			if n > 0 {
				at = b.positions(seq, n)
			}
			p.end, p.ended = b.lines, terminal(b.status)
			return struct{}{}, nil
		})
		if err != nil {
			return p, err
		}
		if len(at) == 0 {
			break
		}
		events, err := journal.ReadBack(ctx, s.engine.For(k.namespace, k.session), at)
		if err != nil {
			return p, err
		}
		full := false
		for _, ev := range events {
			if full = len(p.lines) >= maxWALBytes || p.last-after >= int64(most); full {
				break
			}
			var line []byte
			if line, hash, err = appendWAL(nil, hash, seq+1, ev); err != nil {
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
	if seq > from.seq {
		s.chains.keep(k, knot{seq, hash})
	}
	return p, nil
}

// wal is the board of a WAL.
func (s *State) wal(k boardKey) (*board, error) {
	if se := s.sessions[key{k.namespace, k.session}]; se != nil {
		if b := se.byWal[k.wal]; b != nil {
			return b, nil
		}
	}
	return nil, fault.NotFound.Newf("session %q has no WAL %q; ListWals shows what it has", k.session, k.wal).With("wal_name", k.wal)
}

// ReadWal reads lines of a WAL.
func (s *Service) ReadWal(ctx context.Context, req *boardv1.ReadWalRequest) (*boardv1.ReadWalResponse, error) {
	if err := fault.First(s.operate(ctx, "agent.task_get", req.GetSessionId()), fault.Name("wal_name", req.GetWalName()), afterSeq(req.GetAfterWalSeq())); err != nil {
		return nil, err
	}
	most := int(req.GetLimit())
	switch {
	case most < 0 || most > maxWALLines:
		return nil, fault.LimitExceeded.Newf("limit is %d; it must be 0 to %d", most, maxWALLines).WithField("limit", "must be 0 to 2000")
	case most == 0:
		most = 500
	}
	k := boardKey{rpc.ActorFrom(ctx).Namespace, req.GetSessionId(), req.GetWalName()}
	p, err := s.walOf(ctx, k, req.GetAfterWalSeq(), most)
	if err != nil {
		return nil, err
	}
	return &boardv1.ReadWalResponse{Lines: p.lines, LastWalSeq: p.last, Truncated: p.last < p.end, Ended: p.ended}, nil
}

func afterSeq(n int64) error {
	if n < 0 {
		return fault.InvalidArgument.Newf("after_wal_seq is %d; it must be at least 0", n).WithField("after_wal_seq", "must be at least 0")
	}
	return nil
}

// FollowWal streams lines as they are written, and ends after the board did.
func (s *Service) FollowWal(req *boardv1.FollowWalRequest, stream grpc.ServerStreamingServer[boardv1.FollowWalResponse]) error {
	ctx := stream.Context()
	if err := fault.First(s.operate(ctx, "agent.task_get", req.GetSessionId()), fault.Name("wal_name", req.GetWalName()), afterSeq(req.GetAfterWalSeq())); err != nil {
		return err
	}
	k := boardKey{rpc.ActorFrom(ctx).Namespace, req.GetSessionId(), req.GetWalName()}
	id, err := journalView(ctx, s, key{k.namespace, k.session}, func(st *State) (string, error) {
		b, err := st.wal(k)
		if err != nil {
			return "", err
		}
		return b.id, nil
	})
	if err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // tells that the log is there
		return err
	}
	after := req.GetAfterWalSeq()
	for {
		changed := s.watches.on(watchKey{k.namespace, k.session, id})
		p, err := s.walOf(ctx, k, after, maxWALLines)
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
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return fault.NotReady.New("the server stops; follow again behind the last line")
		}
	}
}

// ListWals reads a session's WALs in the order in which they were made.
func (s *Service) ListWals(ctx context.Context, req *boardv1.ListWalsRequest) (*boardv1.ListWalsResponse, error) {
	if err := s.operate(ctx, "agent.task_list", req.GetSessionId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("wals", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	return journalView(ctx, s, k, func(st *State) (*boardv1.ListWalsResponse, error) {
		out := &boardv1.ListWalsResponse{}
		se := st.sessions[k]
		if se == nil {
			return out, nil
		}
		listed := from == nil
		for _, b := range se.wals {
			switch {
			case !listed:
				listed = b.key.wal == from[0]
				continue
			case len(out.Wals) == size:
				out.NextPageToken = page.Token("wals", out.Wals[size-1].GetWalName())
				return out, nil
			}
			out.Wals = append(out.Wals, &boardv1.Wal{WalName: b.key.wal, BoardId: b.id, WalPath: walPath(b.key), LastWalSeq: b.lines, Status: b.status})
		}
		return out, nil
	})
}

// replayed is a board that has ended, made from its WAL for one reader.
func (s *Service) replayed(ctx context.Context, k boardKey) (*board, error) {
	var at []uint64
	id, err := journalView(ctx, s, key{k.namespace, k.session}, func(st *State) (string, error) {
		b, err := st.wal(k)
		if err != nil {
			return "", err
		}
		at = b.positions(0, int(b.lines))
		return b.id, nil
	})
	if err != nil {
		return nil, err
	}
	b := newBoard(k, id)
	for len(at) > 0 {
		n := min(len(at), walChunk)
		events, err := journal.ReadBack(ctx, s.engine.For(k.namespace, k.session), at[:n])
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			b.note(ev)
			if err := b.apply(ev); err != nil {
				b.damaged = err
				return nil, b.usable()
			}
		}
		at = at[n:]
	}
	return b, nil
}

func appendInt(dst []byte, n int64) []byte {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return append(dst, b[i:]...)
		}
	}
}

// unhashed is a line without its hash, and the hash.
func unhashed(line []byte) ([]byte, chainHash, bool) {
	i := bytes.LastIndex(line, []byte(hashField))
	var h chainHash
	if i < 0 || len(line) != i+len(hashField)+2*hashSize+2 || !bytes.HasSuffix(line, []byte(`"}`)) {
		return nil, h, false
	}
	if _, err := hex.Decode(h[:], line[i+len(hashField):len(line)-2]); err != nil {
		return nil, h, false
	}
	return line[:i], h, true
}
