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
	"quartet/pkg/journal/lines"
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

// apply rebuilds the streams of which a damaged partition can be repaired, opens them with a server, reads what it
// answers, and exchanges them for the damaged ones. It returns where these are. Other partitions stay as they are, damaged or not.
func (r *run) apply(ctx context.Context) (replaced string, err error) {
	var planes []string
	for _, plane := range r.Planes {
		if slices.ContainsFunc(r.ofPlane(plane), func(j *journal) bool { return j.Status == Repairable || j.Status == Accepted }) {
			planes = append(planes, plane)
		}
	}
	if len(planes) == 0 {
		return "", nil
	}
	building := r.store + unfinished
	replaced = r.replaced()
	if err := setAside(building, filepath.Join(replaced, "interrupted")); err != nil {
		return "", err
	}
	if err := r.create(ctx, building, planes); err != nil {
		return "", err
	}
	for _, plane := range planes {
		if err := r.fill(building, plane); err != nil {
			return "", fmt.Errorf("the journal of %s: %w", plane, err)
		}
	}
	if err := r.verify(ctx, building, planes); err != nil {
		return "", err
	}
	if err := r.Sync(building); err != nil {
		return "", err
	}
	for _, plane := range planes {
		for _, j := range r.ofPlane(plane) {
			if j.Status == Accepted {
				if err := j.Loss.write(filepath.Join(r.DataDir, "lost"), j.of, r.stamp()); err != nil {
					return "", err
				}
			}
		}
		if err := r.exchange(building, replaced, plane); err != nil {
			return "", fmt.Errorf("the journal of %s: %w", plane, err)
		}
	}
	return replaced, os.RemoveAll(building)
}

// setAside moves away what an interrupted repair left, since it may be the damaged stream that was exchanged already.
func setAside(left, to string) error {
	if there, err := exists(left); err != nil || !there {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.Rename(left, to)
}

// ofPlane returns the journals of a plane.
func (r *run) ofPlane(plane string) (all []*journal) {
	for _, j := range r.journals {
		if j.of.plane == plane {
			all = append(all, j)
		}
	}
	return all
}

// create creates empty streams.
func (r *run) create(ctx context.Context, store string, planes []string) error {
	return serve(store, func(nc *nats.Conn) error {
		for _, plane := range planes {
			if _, err := jetlog.EnsureStream(ctx, nc, plane, 1, r.streams[plane].partitions); err != nil {
				return err
			}
		}
		return nil
	})
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

// frames returns the frames of a plane's stream, in order.
func (r *run) frames(plane string) (all []*copyOf, err error) {
	for _, j := range r.ofPlane(plane) {
		switch j.Status {
		case Lost:
			all = append(all, r.streams[plane].stored(j.of.number)...)
		case Accepted:
			all = append(append(all, j.chain.kept...), j.begin)
		default:
			all = append(all, j.chain.kept...)
		}
	}
	slices.SortFunc(all, func(a, b *copyOf) int { return cmp.Compare(a.seq, b.seq) })
	for i := 1; i < len(all); i++ {
		if all[i].seq == all[i-1].seq {
			return nil, fmt.Errorf("message %d is claimed by %s and by %s: the stream was written to after it was damaged; restore a backup", all[i].seq, all[i-1].subject, all[i].subject)
		}
	}
	return all, nil
}

// fill writes the blocks of a stream that has none.
func (r *run) fill(store, plane string) error {
	name := jetlog.StreamName(plane)
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
	all, err := r.frames(plane)
	if err != nil {
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
		b = sum.Append(b, blockfile.Record{Seq: f.seq, At: at, Subject: f.subject, Header: f.header, Body: f.frame.Body})
	}
	if last := r.newest[plane]; len(all) == 0 || all[len(all)-1].seq < last {
		b = sum.Append(b, blockfile.Record{Seq: last, At: r.Now.UnixNano(), Erased: true}) // no number is used twice
	}
	return flush()
}

// createdAt returns when the last event of a frame occurred, in nanoseconds of Unix time; 0 if it does not say.
func createdAt(f *copyOf) int64 {
	all := lines.Split(f.frame.Body)
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

// verify opens the rebuilt streams with a server and requires that each partition has the frames that it should have,
// each continuing the one before it.
func (r *run) verify(ctx context.Context, store string, planes []string) error {
	return serve(store, func(nc *nats.Conn) error {
		for _, plane := range planes {
			for _, j := range r.ofPlane(plane) {
				if j.Status == Lost {
					continue
				}
				if err := j.verify(ctx, nc); err != nil {
					return fmt.Errorf("what was rebuilt of the journal of %s is not in order, and nothing was changed: %w", j.Partition, err)
				}
			}
		}
		return nil
	})
}

// verify reads a rebuilt journal.
func (j *journal) verify(ctx context.Context, nc *nats.Conn) error {
	log, err := jetlog.New(nc, j.of.plane, j.of.number)
	if err != nil {
		return err
	}
	want, n := j.chain.end, len(j.chain.kept)
	if j.begin != nil {
		want, n = j.Begins, n+1
	}
	var end framelog.End
	if err := log.Scan(ctx, 0, func(seq uint64, f framelog.Frame) error {
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
		return fmt.Errorf("it ends behind frame %d (%.12s) instead of frame %d (%.12s)", end.Seq, end.Hash, want.Seq, want.Hash)
	}
	return nil
}

// exchange puts a rebuilt stream into the place of the damaged one, which it keeps below replaced together with what was
// salvaged of it. An interruption leaves one or the other in place.
func (r *run) exchange(building, replaced, plane string) error {
	name := jetlog.StreamName(plane)
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
