package framelog

import (
	"context"
	"errors"
	"fmt"
)

// Follow calls fn for each frame of a partition behind after, as Log.Follow does, with the end of the log
// behind the frame. It returns a *Broken if a frame does not continue the one before it, and if the log
// does not have the frame at after. The zero End is the beginning of the log; of an End with a zero Hash
// only Seq is used.
func Follow(ctx context.Context, log Log, partition string, after End, fn func(end End, f Frame) error) error {
	if after.Seq > 0 && !after.Hash.IsZero() {
		if err := verify(ctx, log, partition, after); err != nil {
			return err
		}
	}

	known := after.Seq == 0 || !after.Hash.IsZero() // what the next frame has to continue
	return log.Follow(ctx, after.Seq+1, func(seq uint64, f Frame) error {
		var next End
		var intact bool
		var err error
		if known {
			next, intact, err = after.Next(partition, seq, f)
		} else {
			next, intact = Anchor(partition, seq, f)
		}
		if err == nil && !intact {
			err = Altered(partition, after, seq)
		}
		if err != nil {
			return err
		}
		after, known = next, true
		return fn(after, f)
	})
}

// Read returns the frame at seq, and verifies its content but not that it continues the frame before. The error is a
// *Broken if the frame was changed or is gone, ErrRemoved if it was removed, and otherwise the log's.
func Read(ctx context.Context, log Log, partition string, seq uint64) (Frame, error) {
	f, err := get(ctx, log, seq)
	switch {
	case errors.Is(err, ErrGone), errors.Is(err, ErrTrimmed):
		return Frame{}, &Broken{Partition: partition, Seq: seq, Cause: fmt.Sprintf("frame %d is gone", seq)}
	case err != nil:
		return Frame{}, err
	}
	if f.Removed.Seq > 0 {
		return Frame{}, fmt.Errorf("%w: %d of %s", ErrRemoved, seq, partition)
	}
	if _, intact := Anchor(partition, seq, f); !intact {
		return Frame{}, Altered(partition, End{}, seq)
	}
	return f, nil
}

// get is log.Get, and also finds that a frame was removed in a log that was restored: such a log has the Frame that
// stands for removed frames only at the sequence number of the last of them.
func get(ctx context.Context, log Log, seq uint64) (Frame, error) {
	f, err := log.Get(ctx, seq)
	if !errors.Is(err, ErrGone) && !errors.Is(err, ErrTrimmed) {
		return f, err
	}
	var next Frame
	_ = log.Scan(ctx, seq, func(found uint64, f Frame) error { // the error of Get says more than that of Scan
		if found > seq {
			next = f
		}
		return errFirst
	})
	if next.Removed.Seq > 0 {
		return next, nil
	}
	return f, err
}

// errFirst ends a scan at the first frame.
var errFirst = errors.New("framelog: the first frame")

// verifyAttempts is how often a frame that is not found is looked for, over 2.3 s, unless the log says that it is gone:
// a server of a cluster that is no leader any more may not have it.
const verifyAttempts = 10

// verify returns a *Broken if the log does not have the frame at end, or has another one there. It returns nil if
// that frame was removed together with later ones.
func verify(ctx context.Context, log Log, partition string, end End) error {
	// Ask again if the frame may be there nevertheless.
	f, err := get(ctx, log, end.Seq)
	pacer := NewPacer()
	for n := 1; n < verifyAttempts && errors.Is(err, ErrNoFrame) && !errors.Is(err, ErrGone) &&
		pacer.Wait(ctx) == nil; n++ {
		f, err = get(ctx, log, end.Seq)
	}
	switch {
	case errors.Is(err, ErrNoFrame):
		return &Broken{
			Partition: partition, After: End{}, Seq: end.Seq,
			Cause: fmt.Sprintf("frame %d, with the events up to wal_seq %d, is gone", end.Seq, end.WalSeq),
		}
	case err != nil:
		return err
	}
	if f.Removed.Seq > end.Seq {
		return nil // it was removed with others, and cannot be verified
	}
	if got, _ := Anchor(partition, end.Seq, f); got.Hash != end.Hash {
		return &Broken{
			Partition: partition, After: End{}, Seq: end.Seq,
			Cause: fmt.Sprintf("frame %d is another one than the one that was read there (%.12s, not %.12s)", end.Seq,
				got.Hash, end.Hash),
		}
	}
	return nil
}
