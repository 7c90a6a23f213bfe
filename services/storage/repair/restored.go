package repair

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
)

// BeginRestored begins a new incarnation of each partition of a plane whose journal was restored from a backup. The
// journal does not have what was written after the backup, which others may have read, so the incarnation's wal_seqs
// begin above all that they may know. witnessDir and witnessed, by name of the partition, have what was witnessed of
// the installation before; both may be empty. Empty journals, and those whose frames do not continue each other, stay
// as they are.
func BeginRestored(ctx context.Context, nc *nats.Conn, plane string, partitions int, witnessDir string,
	witnessed map[string]framelog.End, now time.Time, newID func(prefix string) string,
) error {
	for i := range partitions {
		log, err := jetlog.New(nc, plane, i)
		if err != nil {
			return err
		}
		name := framelog.PartitionName(plane, i)
		end, generation := framelog.End{}, uint64(0)
		if err := log.Scan(ctx, 0, func(seq uint64, f framelog.Frame) error {
			next, _, err := end.Next(name, seq, f) // a frame that was changed is named when the journal is loaded
			end, generation = next, max(generation, f.Generation)
			return err
		}); errors.As(err, new(*framelog.Broken)) {
			continue // the backup has the journal so, and loading names it
		} else if err != nil {
			return err
		}
		if end.Seq == 0 {
			continue
		}
		last, number := end.WalSeq, max(end.Incarnation, 1)
		if known, err := witness.At(witnessDir, plane, i).Last(); err == nil {
			last, number = max(last, known.WalSeq), max(number, known.Incarnation)
		}
		last, number = max(last, witnessed[name].WalSeq), max(number, witnessed[name].Incarnation)
		var salt framelog.Salt
		_, _ = rand.Read(salt[:]) // it never fails
		f, err := framelog.Beginning{
			Plane: plane, Partition: i, Behind: end, Segment: end.Segment, Number: number + 1, First: last + margin + 1,
			Generation: generation + 1, At: now, Cause: "the journal was restored from a backup",
		}.Frame(newID, salt)
		if err != nil {
			return err
		}
		if _, err := log.Append(ctx, end.Seq, f); err != nil {
			return fmt.Errorf("the journal of %s: %w", name, err)
		}
	}
	return nil
}
