package framelog

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/retry"
)

// Result is the outcome of writing a frame.
type Result struct {
	Outcome Outcome
	At      End  // behind the frame, if it was stored
	End     End  // the end of the log, if no other writer was found; of a refused frame, the one before it
	Foreign bool // another writer was found: the partition must reload
	Clean   bool // no attempt was ambiguous: nothing else holds the body, and no fence was written
	Err     error
}

// Outcome is the kind of a Result.
type Outcome int

// The outcomes.
const (
	Stored    Outcome = iota
	Absent            // not found in the log; only a load, which ends with an append, can confirm that
	Refused           // not stored, and never will be
	Abandoned         // the context ended before the outcome was known
)

// Writer writes the frames of one partition, one at a time. Its fields are required, except Fencing
// and Appended.
type Writer struct {
	Log       Log
	Partition string // see PartitionName
	NewID     func(prefix string) string
	Timeout   time.Duration // of one attempt
	Logger    *zap.Logger
	// Secret is unknown to readers of the log; the salts of frames are derived from it.
	Secret [sha256.Size]byte
	// Fencing is called when an attempt turns out to be ambiguous. No command may be decided from
	// then on until the outcome is known.
	Fencing func()
	// Appended is called with the outcome of each attempt to append the frame itself.
	Appended func(err error)
}

// Salt returns the salt of the frame with an id.
func (w *Writer) Salt(id string) (s Salt) {
	sum := sha256.Sum256(append(w.Secret[:], id...))
	copy(s[:], sum[:])
	return s
}

// Seal chains f to the end of a log, and returns f and the end behind it, without its sequence number, which only the
// log knows. c is the content of its body, with its salt. A frame whose Link.Next is set closes the segment.
func (w *Writer) Seal(end End, f Frame, c *Content) (Frame, End) {
	l := Link{
		Format: formatChained, Incarnation: max(end.Incarnation, 1), Segment: end.Segment, First: end.WalSeq + 1,
		Next: f.Link.Next, Salt: c.salt, Prev: end.Hash,
	}
	behind := End{WalSeq: end.WalSeq + c.Lines(), Incarnation: l.Incarnation, Segment: l.Segment}
	if l.Next > 0 {
		l.Format = formatClosing
		behind.Segment++
	}
	f.Link = l
	f.Link.Hash = hashOf(w.Partition, f, c)
	behind.Hash = f.Link.Hash
	return f, behind
}

// CloseSegment writes the frame that closes the segment at end, behind which the log continues in the next one, which
// begins at the sequence number next. The outcome is as for Write. Once the log has this frame, it refuses appends of a
// writer that does not know of it.
func (w *Writer) CloseSegment(ctx context.Context, end End, generation, next uint64) Result {
	f := Frame{ID: w.NewID(""), Generation: generation, Link: Link{Next: next}}
	return w.Write(ctx, end, f, NewContent(w.Salt(f.ID)))
}

// Begin chains f to the end of a log as the first frame of a new incarnation of its partition, whose lines begin with
// the wal_seq first, in a segment that is not before that of end. c is the content of its body, with its salt.
func Begin(partition string, end End, segment, incarnation, first uint64, f Frame, c *Content) Frame {
	f.Link = Link{
		Format: formatChained, Incarnation: incarnation, Segment: segment, First: first, Salt: c.salt,
		Prev: end.Hash,
	}
	f.Link.Hash = hashOf(partition, f, c)
	return f
}

// Append makes one attempt to append f behind end, and returns the end of the log behind f. Its errors are those of
// Log.Append.
func (w *Writer) Append(ctx context.Context, end End, f Frame, c *Content) (End, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	f, next := w.Seal(end, f, c)
	seq, err := w.Log.Append(ctx, end.Seq, f)
	next.Seq = seq
	return next, err
}

// Write tries to append f behind end, and blocks until the outcome is known, or is Abandoned because
// ctx ended. After an attempt without an answer it writes a fence, and once that is stored appends
// the frame again, chained to the fence (R5). c is the content of the body.
func (w *Writer) Write(ctx context.Context, end End, f Frame, c *Content) Result {
	clean := true
	fences := make(map[string]struct{}) // of this call; those of earlier calls cannot be stored any more
	pacer := NewPacer()
	for {
		// Attempt to append the frame.
		next, err := w.Append(ctx, end, f, c)
		if w.Appended != nil {
			w.Appended(err)
		}
		switch {
		case err == nil:
			return Result{Outcome: Stored, At: next, End: next, Clean: clean}
		case errors.Is(err, ErrSegmentGone):
			return Result{Outcome: Absent, End: end, Foreign: true, Err: err}
		case errors.Is(err, ErrRefused):
			return Result{Outcome: Refused, End: end, Err: err}
		case errors.Is(err, ErrBusy):
			if pacer.Wait(ctx) != nil {
				return Result{Outcome: Abandoned, Err: err}
			}
			continue
		case errors.Is(err, ErrWrongSequence):
		default: // ambiguous: the frame may be stored, now or later
			if w.Fencing != nil {
				w.Fencing()
			}
			clean = false
			w.Logger.Warn("journal: append without an answer, fencing", zap.String("frame", f.ID),
				zap.Uint64("expect", end.Seq), zap.Error(err))
			next, err := w.fence(ctx, end, f.Generation, fences)
			if err == nil {
				// The fence has the sequence number that the frame expected, so that attempt can no
				// longer succeed. No other writer was found, so the state is still right and the
				// same frame is appended behind the fence.
				end = next
				continue
			}
			if errors.Is(err, ErrSegmentGone) {
				return Result{Outcome: Absent, End: end, Foreign: true, Err: err}
			}
			if !errors.Is(err, ErrWrongSequence) {
				return Result{Outcome: Abandoned, Err: err}
			}
		}

		// The log does not end at end. Find out why.
		v, onlyFences := w.inspect(ctx, end, f, fences)
		if !onlyFences {
			return v
		}
		end, clean = v.End, false
	}
}

// fence appends an empty frame behind end until that is acknowledged or refused with
// ErrWrongSequence or ErrSegmentGone. Any other error means that ctx ended. It adds the ids of its frames to fences.
func (w *Writer) fence(ctx context.Context, end End, generation uint64, fences map[string]struct{}) (End, error) {
	pacer := NewPacer()
	for {
		f := Frame{ID: w.NewID(""), Generation: generation}
		fences[f.ID] = struct{}{}
		next, err := w.Append(ctx, end, f, NewContent(w.Salt(f.ID)))
		if err == nil || errors.Is(err, ErrWrongSequence) || errors.Is(err, ErrSegmentGone) {
			return next, err
		}
		if pacer.Wait(ctx) != nil {
			return End{}, errors.Join(ctx.Err(), err)
		}
	}
}

// inspect reads the log behind end after ErrWrongSequence. onlyFences reports that nothing but fences of this call is
// there, and that the frame is to be appended behind the End of the result. Otherwise the result is final: Stored if f
// is there, Absent if it is not, Foreign if there are frames of another writer, and Abandoned if ctx ended. It retries
// errors of the log.
func (w *Writer) inspect(ctx context.Context, end End, f Frame, fences map[string]struct{}) (
	v Result, onlyFences bool,
) {
	pacer := NewPacer()
	for {
		v = Result{Outcome: Absent, End: end}
		err := w.Log.Scan(ctx, end.Seq+1, func(seq uint64, got Frame) error {
			next, _, err := v.End.Next(w.Partition, seq, got)
			if err != nil {
				v.Foreign, next = true, End{Seq: seq} // a load will say what is wrong
			}
			_, fence := fences[got.ID]
			switch {
			case got.ID == f.ID:
				v.Outcome, v.At = Stored, next
			case !fence:
				v.Foreign = true
			}
			v.End = next
			return nil
		})
		if err == nil {
			break
		}
		if pacer.Wait(ctx) != nil {
			return Result{Outcome: Abandoned, Err: errors.Join(ctx.Err(), err)}, false
		}
	}
	// If nothing is behind end although the append was refused, the read was outdated. A load ends
	// with an acknowledged append, which detects that.
	return v, v.Outcome == Absent && !v.Foreign && v.End.Seq > end.Seq
}

// NewPacer returns the intervals at which the log is tried again.
func NewPacer() *retry.Pacer { return retry.New(5*time.Millisecond, time.Second) }
