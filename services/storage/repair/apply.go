package repair

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
)

const (
	// unfinished is the suffix of the directory in which streams are rebuilt, beside the store.
	unfinished = ".repairing"
	// blockBytes is the size that blocks have at most, apart from a larger message; the server's own limit is
	// 8 MiB.
	blockBytes = 4 << 20
)

// apply rebuilds the streams that have frames of partitions which can be repaired, verifies them with a server, and
// exchanges them for the damaged ones. It returns the directory to which it moved these; "" if it rebuilt none. Other
// partitions stay as they are, damaged or not.
func (r *run) apply(ctx context.Context) (replaced string, err error) {
	builds, err := r.builds()
	if err != nil || len(builds) == 0 {
		return "", err
	}
	building := r.store + unfinished
	replaced = r.replaced()
	if err := setAside(building, filepath.Join(replaced, "interrupted")); err != nil {
		return "", err
	}
	if err := serve(building, func(nc *nats.Conn) error {
		for _, b := range builds {
			if err := jetlog.Create(ctx, nc, b.of, 1, r.streams[b.of.Plane].partitions, b.first); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return "", err
	}
	for _, b := range builds {
		if err := r.fill(building, b); err != nil {
			return "", fmt.Errorf("stream %s: %w", b.of.Stream(), err)
		}
	}
	if err := r.verify(ctx, building, builds); err != nil {
		return "", err
	}
	if err := r.Sync(building); err != nil {
		return "", err
	}
	for _, j := range r.journals {
		if j.Status == Accepted {
			if err := j.Loss.write(filepath.Join(r.DataDir, "lost"), j.of, r.stamp()); err != nil {
				return "", err
			}
		}
	}
	// What comes behind the end of a journal goes first, so that an interruption leaves a journal that is damaged, and
	// not one that seems to be in order.
	for _, of := range r.givenUp(builds) {
		if err := r.remove(replaced, of); err != nil {
			return "", fmt.Errorf("stream %s: %w", of.Stream(), err)
		}
	}
	for _, b := range builds {
		if err := r.exchange(building, replaced, b.of.Stream()); err != nil {
			return "", fmt.Errorf("stream %s: %w", b.of.Stream(), err)
		}
	}
	return replaced, os.RemoveAll(building)
}

// setAside moves the directory that an interrupted repair left, and does not remove it, since it may have a damaged
// stream that was exchanged already.
func setAside(left, to string) error {
	if there, err := exists(left); err != nil || !there {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.Rename(left, to)
}

// serve runs fn with a connection to a server over a store.
func serve(store string, fn func(nc *nats.Conn) error) error {
	srv, err := natsd.Start(natsd.Config{StoreDir: store, Port: natsd.InProcess, Bulk: true})
	if err != nil {
		return err
	}
	defer srv.Stop()
	nc, err := srv.Connect("quartet-repair")
	if err != nil {
		return err
	}
	defer nc.Close()
	return fn(nc)
}

// build is a stream that is built anew.
type build struct {
	of     jetlog.Place
	first  uint64 // sequence number at which the segment begins
	frames []*copyOf
}

// repaired reports whether the repair builds the streams of the journal anew: what is wrong with it is repairable, or
// its loss was accepted.
func (j *examined) repaired() bool { return j.Status == Repairable || j.Status == Accepted }

// content returns the frames that a journal has after the repair, in order. Those of a journal that is Lost, which is
// not repaired, are the frames that the store has of it now. The caller must not change the slice.
func (j *examined) content(s *stream) []*copyOf {
	switch j.Status {
	case Lost:
		return s.stored(j.of.number, 0)
	case Accepted:
		return append(slices.Clip(j.chain.kept), j.begin)
	default:
		return j.chain.kept
	}
}

// placeOf returns the segment in whose stream a frame is.
func placeOf(f *copyOf) jetlog.Place {
	p, _ := jetlog.ParseSubject(f.subject)
	if p.Shared {
		p.Partition = 0
	}
	return p
}

// builds returns the streams in which there are frames of a journal that is repaired, in order. A shared one gets the
// frames of all partitions. It returns an error if two of its frames have the same sequence number.
func (r *run) builds() (all []*build, err error) {
	byPlace := map[jetlog.Place]*build{}
	for _, j := range r.journals {
		if !j.repaired() {
			continue
		}
		for _, f := range j.content(r.streams[j.of.plane]) {
			if p := placeOf(f); byPlace[p] == nil {
				byPlace[p] = &build{of: p, first: r.first(j, p)}
				all = append(all, byPlace[p])
			}
		}
	}
	for _, j := range r.journals {
		s := r.streams[j.of.plane]
		all := j.content(s)
		if j.Status != Lost { // a stream of several partitions also has frames that are archived
			all = slices.Concat(all, slices.DeleteFunc(s.stored(j.of.number, 0), func(f *copyOf) bool {
				return f.seq > j.archived.end().Seq
			}))
		}
		for _, f := range all {
			if b := byPlace[placeOf(f)]; b != nil {
				b.frames = append(b.frames, f)
			}
		}
	}
	for _, b := range all {
		slices.SortFunc(b.frames, func(x, y *copyOf) int { return cmp.Compare(x.seq, y.seq) })
		for i := 1; i < len(b.frames); i++ {
			if x, y := b.frames[i-1], b.frames[i]; x.seq == y.seq {
				return nil, fmt.Errorf("message %d is claimed by %s and by %s: the stream was written to after it "+
					"was damaged; restore a backup", x.seq, x.subject, y.subject)
			}
		}
	}
	slices.SortFunc(all, func(x, y *build) int { return x.of.Compare(y.of) })
	return all, nil
}

// first returns the sequence number at which a segment begins: as its stream says, else that of the frame with which a
// new incarnation begins it, else as the frame says that closed the segment before. If nothing says it, it is that of
// its first frame, or 1 in the first segment.
func (r *run) first(j *examined, of jetlog.Place) uint64 {
	for _, seg := range r.streams[of.Plane].segments {
		if seg.Place == of {
			return seg.First
		}
	}
	if j.begin != nil && placeOf(j.begin) == of {
		return j.begin.seq
	}
	for _, f := range j.chain.kept {
		if f.frame.Link.Next > 0 && f.frame.Link.Segment+1 == of.Segment {
			return f.frame.Link.Next
		}
	}
	for _, f := range j.chain.kept { // the segment before it is archived
		if of.Segment > 0 && placeOf(f) == of {
			return f.seq
		}
	}
	return 1
}

// givenUp returns the segments of partitions whose loss was accepted that are not built anew, the newest first.
func (r *run) givenUp(builds []*build) (all []jetlog.Place) {
	for _, j := range r.journals {
		if j.Status != Accepted {
			continue
		}
		for _, seg := range r.streams[j.of.plane].has(j.of.number) {
			// One that is archived already is removed by the server.
			if !seg.Shared && seg.Segment >= j.archived.end().Segment &&
				!slices.ContainsFunc(builds, func(b *build) bool { return b.of == seg.Place }) {
				all = append(all, seg.Place)
			}
		}
	}
	slices.SortFunc(all, func(x, y jetlog.Place) int { return y.Compare(x) })
	return all
}

// remove moves the stream of a segment out of the store.
func (r *run) remove(replaced string, of jetlog.Place) error {
	if err := os.MkdirAll(replaced, 0o700); err != nil {
		return err
	}
	from := blockfile.Stream(r.store, r.Account, of.Stream())
	if err := os.Rename(from, filepath.Join(replaced, of.Stream())); err != nil {
		return err
	}
	return errors.Join(salvage.SyncDir(filepath.Dir(from)), salvage.SyncDir(replaced))
}

// fill writes the frames of a new stream into its blocks, in the store of a server that does not run.
func (r *run) fill(store string, of *build) error {
	name, all := of.of.Stream(), of.frames
	dir := blockfile.Messages(store, r.Account, name)
	old, err := blockfile.Files(dir)
	if err != nil {
		return err
	}
	for _, file := range old {
		if err := os.Remove(file.Path); err != nil {
			return err
		}
	}
	if err := blockfile.DropIndex(dir); err != nil {
		return err
	}
	var b []byte
	index, at := 1, int64(0)
	sum := blockfile.NewSum(name, index)
	flush := func() error {
		err := salvage.Write(filepath.Join(dir, blockfile.Name(index)), b)
		index, b = index+1, b[:0]
		sum = blockfile.NewSum(name, index)
		return err
	}
	for _, f := range all {
		if len(b) > 0 && len(b)+len(f.frame.Body) > blockBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		// A backup does not have the times at which messages were stored; no message may be older than
		// the one before it.
		at = max(at, f.at, createdAt(f))
		b = sum.Append(b, blockfile.Record{
			Seq: f.seq, At: at, Subject: f.subject, Header: f.header,
			Body: jetlog.Body(f.frame),
		})
	}
	return flush()
}

// createdAt returns when the last event of a frame occurred, in nanoseconds of Unix time, for a frame of which it is
// not known when it was stored; 0 for others, and if the event does not say it.
func createdAt(f *copyOf) int64 {
	all := framelog.SplitLines(f.frame.Body)
	if f.at > 0 || len(all) == 0 {
		return 0
	}
	var last struct {
		At time.Time `json:"created_at"`
	}
	if json.Unmarshal(all[len(all)-1], &last) != nil || last.At.IsZero() {
		return 0
	}
	return last.At.UnixNano()
}

// verify opens the rebuilt streams with a server and requires that each partition whose frames are all in builds has
// the frames that it should have, each continuing the one before it.
func (r *run) verify(ctx context.Context, store string, builds []*build) error {
	return serve(store, func(nc *nats.Conn) error {
		for _, j := range r.journals {
			all := j.content(r.streams[j.of.plane])
			if j.Status == Lost || len(all) == 0 || slices.ContainsFunc(all, func(f *copyOf) bool {
				return !slices.ContainsFunc(builds, func(b *build) bool { return b.of == placeOf(f) })
			}) {
				continue
			}
			first := uint64(0)
			for _, b := range builds { // in order
				if b.of.Plane == j.of.plane && (b.of.Shared || b.of.Partition == j.of.number) {
					first = b.first
					break
				}
			}
			if err := j.verify(ctx, nc, first); err != nil {
				return fmt.Errorf("what was rebuilt of the journal of %s is not in order, and nothing was changed: %w",
					j.Partition, err)
			}
		}
		return nil
	})
}

// verify reads a rebuilt journal, whose first segment begins at a sequence number.
func (j *examined) verify(ctx context.Context, nc *nats.Conn, first uint64) error {
	log, err := jetlog.New(nc, j.of.plane, j.of.number)
	if err != nil {
		return err
	}
	want, n := j.chain.end, len(j.chain.kept)
	if j.begin != nil {
		want, n = j.Begins, n+1
	}
	end := j.archived.end()
	if err := log.Scan(ctx, max(end.Seq+1, first), func(seq uint64, f framelog.Frame) error {
		next, intact, err := end.Next(j.Partition, seq, f)
		if err == nil && !intact {
			err = framelog.Altered(j.Partition, end, seq)
		}
		end, n = next, n-1
		return err
	}); err != nil {
		return err
	}
	if n != 0 || end != want {
		return fmt.Errorf("it ends behind frame %d (%.12s) instead of frame %d (%.12s)", end.Seq, end.Hash, want.Seq,
			want.Hash)
	}
	return nil
}

// exchange puts a rebuilt stream into the place of the damaged one, which it keeps below replaced together with what
// was salvaged of it. An interruption leaves one or the other in place.
func (r *run) exchange(building, replaced, name string) error {
	rebuilt, target := blockfile.Stream(building, r.Account, name), blockfile.Stream(r.store, r.Account, name)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(replaced, 0o700); err != nil {
		return err
	}
	there, err := exists(target)
	if err != nil {
		return err
	}
	if !there {
		err = os.Rename(rebuilt, target)
	} else if err = swap(rebuilt, target); err == nil {
		err = os.Rename(rebuilt, filepath.Join(replaced, name))
	}
	if err != nil {
		return err
	}
	// Copies of given up frames must not be taken for a part of the journal later.
	copies := filepath.Join(r.SalvageDir, name)
	if there, err = exists(copies); there && err == nil {
		err = os.Rename(copies, filepath.Join(replaced, name+"-salvaged"))
	}
	return errors.Join(err, salvage.SyncDir(filepath.Dir(target)), salvage.SyncDir(replaced))
}
