package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/snapshot"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// Stored returns the usage of the streams that are Quartet's, in no particular order, and what of them the journals of
// planes take, from one listing of the NATS servers. The streams are EVENTS and those whose names begin with quartet-;
// those of buckets are not among them. archives returns the archive of a partition. It is an error if nc is nil, or if
// the servers take longer than term.
func Stored(ctx context.Context, nc *nats.Conn, planes []string, partitions func(plane string) int,
	archives func(plane string, partition int) (archive.Store, error)) (streams []*identityv1.StreamUsage,
	journals []*identityv1.JournalUsage, err error,
) {
	if nc == nil {
		return nil, nil, errNoBroker
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	type key struct {
		plane     string
		partition int
	}
	of, snapshots := map[key]*identityv1.JournalUsage{}, map[string]*identityv1.JournalUsage{}
	var all []*identityv1.JournalUsage
	for _, plane := range planes {
		for i := range partitions(plane) {
			u := &identityv1.JournalUsage{Plane: plane, Partition: int32(i)}
			of[key{plane, i}], snapshots[jetlog.SnapshotStream(plane, i)], all = u, u, append(all, u)
		}
	}
	listed := js.ListStreams(ctx)
	for info := range listed.Info() {
		if name := info.Config.Name; name == "EVENTS" || strings.HasPrefix(name, "quartet-") {
			streams = append(streams, &identityv1.StreamUsage{
				Name: name, Messages: int64(info.State.Msgs),
				Bytes: int64(info.State.Bytes), MaxBytes: max(info.Config.MaxBytes, 0),
			})
		}
		if u := snapshots[info.Config.Name]; u != nil {
			u.SnapshotBytes = int64(info.State.Bytes)
			if info.State.Msgs > 0 {
				u.SnapshotAt = timestamppb.New(info.State.LastTime)
			}
		}
		place, ok := jetlog.ParseStream(info.Config.Name)
		if u := of[key{place.Plane, place.Partition}]; ok && u != nil {
			u.Segments++
			u.Bytes += int64(info.State.Bytes)
		}
	}
	if err := listed.Err(); err != nil {
		return nil, nil, err
	}
	var read sync.WaitGroup
	for _, u := range all {
		read.Go(func() { archived(ctx, u, archives) })
	}
	read.Wait()
	slices.SortStableFunc(all, func(a, b *identityv1.JournalUsage) int {
		return cmp.Or(cmp.Compare(a.GetPlane(), b.GetPlane()), cmp.Compare(a.GetPartition(), b.GetPartition()))
	})
	return streams, all, nil
}

// ManySegments returns the value of Config.ManySegments: how many segments a partition needs before the snapshots
// that are kept allow that one is archived, and 8 more. segment and snapshots are in MiB: the size at which a segment
// is closed, and how much of a journal is written between two snapshots.
func ManySegments(segment, snapshots int) int { return 8 + (snapshot.Kept+1)*snapshots/max(segment, 1) }

// notArchived returns the problems of archives: that the bucket cannot be used, that an archive cannot be read, and
// that more than ManySegments of a partition are not archived.
func (c Config) notArchived(all []*identityv1.JournalUsage) (problems []*identityv1.InstallationProblem) {
	said := map[string]bool{} // what may be done about a bucket, which is the same for many partitions
	bucket := func(what, text string) {
		remedy := "`quartet verify` says what is damaged"
		if i := strings.LastIndex(text, "; "); i > 0 {
			text, remedy = text[:i], text[i+2:]
		}
		if !said[remedy] {
			said[remedy] = true
			problems = append(problems, &identityv1.InstallationProblem{Text: what + ": " + text, Remedy: remedy})
		}
	}
	if c.Archive != nil {
		if err := c.Archive(); err != nil {
			bucket("the bucket of the archive cannot be used", err.Error())
		}
	}
	many := c.ManySegments
	for _, u := range all {
		name := framelog.PartitionName(u.GetPlane(), int(u.GetPartition()))
		switch {
		case u.GetArchiveProblem() != "" && c.Archive != nil:
			bucket("the archive of "+name+" cannot be read", u.GetArchiveProblem())
		case u.GetArchiveProblem() != "":
			problems = append(problems, &identityv1.InstallationProblem{
				Text: fmt.Sprintf("the archive of %s cannot be read: %s", name, u.GetArchiveProblem()),
				Remedy: "see whether the directory of the setting archive, by default `archive` in the data directory, " +
					"is there; `quartet verify` says what is damaged",
			})
		case int(u.GetSegments()) > many:
			problems = append(problems, &identityv1.InstallationProblem{
				Text: fmt.Sprintf("%d segments of %s wait to be archived (%d MiB)", u.GetSegments()-1, name,
					u.GetBytes()>>20),
				Remedy: "see the log of the process that holds the partition (`quartet status` says which): a " +
					"snapshot or the archive cannot be written, for example because there is no room",
			})
		}
	}
	return problems
}

// archived sets in u what the archive of its partition has, or why it cannot be read.
func archived(ctx context.Context, u *identityv1.JournalUsage, archives func(plane string, partition int) (
	archive.Store, error),
) {
	partition := int(u.GetPartition())
	store, err := archives(u.GetPlane(), partition)
	var c *archive.Catalog
	if err == nil {
		c, err = archive.Read(ctx, store, framelog.PartitionName(u.GetPlane(), partition))
	}
	if err != nil {
		u.ArchiveProblem = err.Error()
		return
	}
	for _, s := range c.Segments {
		u.ArchivedSegments++
		u.ArchivedBytes += s.GetStored()
		u.ArchivedFrameBytes += s.GetBytes()
	}
}
