package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/derived"
)

// Config says where the journals are.
type Config struct {
	DataDir, WitnessDir string
	Planes              []string
	// Archives are where the archives are; zero: below DataDir, or with Remote nowhere.
	Archives archives.Place
	// Remote are the NATS servers; nil: the journals are those of an embedded one in DataDir.
	Remote *natsd.Remote
	// Lock locks DataDir, which no server may use.
	Lock func(dir string) (unlock func() error, err error)
}

// Journal is what Run found in the journal of one partition.
type Journal struct {
	Partition      string // such as work/3
	Server         string // the NATS server whose replica it is; empty: there is one copy
	Frames, Events uint64
	// Segments and ArchivedFrames are how many of its segments and frames are in the archive.
	Segments       int
	ArchivedFrames uint64
	Erased         uint64 // events that were erased; Events counts them too
	Removed        uint64 // events of frames that were removed because they were old; Events does not count them
	End            framelog.End
	Damage         []error // in the order of the journal
}

// Result is what Run found.
type Result struct {
	Journals []Journal
	Streams  []derived.Report // that are not journals: each that exists, in a cluster each replica
}

// copyDir begins the names of the directories in which Run reads copies of journals.
const copyDir = ".verify-"

// Run reads all journals of an installation to their ends, in their archives first: that their frames continue each
// other and have the content that was written, that each line can be read, and that they go as far as the witnesses of
// the data directory. It goes on behind damage. Journals of an embedded NATS server are copied for that, since a server
// that opens damaged files changes them, and no server may run. With Remote servers may run. It also reads the streams
// that are not journals, which need no copy.
func Run(ctx context.Context, cfg Config) (all Result, err error) {
	nc, done, err := connect(ctx, cfg)
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if cfg.Remote != nil {
		if err := archives.CheckMoved(ctx, nc); err != nil {
			return all, err
		}
	}
	if all.Journals, err = journals(ctx, cfg, nc); err != nil {
		return all, err
	}
	streams, err := cfg.streams(ctx, nc)
	if err != nil {
		return all, err
	}
	for _, s := range streams {
		var found []derived.Report
		if cfg.Remote != nil {
			found, err = s.Replicas(ctx, nc)
		} else {
			found = make([]derived.Report, 1)
			found[0], err = s.Read(store(cfg.DataDir), account)
		}
		if err != nil {
			return all, err
		}
		all.Streams = append(all.Streams, found...)
	}
	return all, nil
}

// streams returns EVENTS, the stream of the output of commands, and those of snapshots.
func (cfg *Config) streams(ctx context.Context, nc *nats.Conn) ([]derived.Stream, error) {
	if cfg.Remote != nil {
		return derived.Running(ctx, nc)
	}
	return derived.Stored(store(cfg.DataDir), account)
}

// account is the account of the streams of an embedded server.
const account = "$G"

// store returns the directory of an embedded server.
func store(dataDir string) string { return filepath.Join(dataDir, "nats") }

// partitionsAtOnce is how many partitions are read at the same time. Each takes memory for what the server sends ahead;
// most of the time of a damaged replica is spent waiting for what it does not send.
const partitionsAtOnce = 4

// journals reads all journals. They are in the order of cfg.Planes, then of partitions.
func journals(ctx context.Context, cfg Config, nc *nats.Conn) ([]Journal, error) {
	readings, err := cfg.readings(ctx, nc)
	if err != nil {
		return nil, err
	}
	found := make([][]Journal, len(readings))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(partitionsAtOnce)
	for i, r := range readings {
		all.Go(func() (err error) {
			found[i], err = r.partition(ctx)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

// readings returns a reading for each partition that has a journal, an archive or a witness.
func (cfg *Config) readings(ctx context.Context, nc *nats.Conn) (all []*reading, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	known, err := witness.ReadBucket(ctx, nc)
	if err != nil {
		return nil, err
	}
	for _, plane := range cfg.Planes {
		witnessed, err := witness.Partitions(cfg.WitnessDir, plane)
		if err != nil {
			return nil, err
		}
		n, err := jetlog.Count(ctx, js, plane)
		if err != nil {
			return nil, fmt.Errorf("the journal of %s: %w", plane, err)
		}
		archives, err := cfg.archives().Partitions(ctx, plane)
		if err != nil {
			return nil, err
		}
		for i := range max(n, witnessed, archives, witness.BucketPartitions(known, plane)) {
			r := &reading{JournalConfig: cfg.archives().Config(plane, i), nc: nc, plane: plane, number: i}
			r.Line = readLines
			r.recorded, r.stored = witness.Or(witness.At(cfg.WitnessDir, plane, i),
				known[framelog.PartitionName(plane, i)]), n > 0
			all = append(all, r)
		}
	}
	return all, nil
}

// connect connects to the servers of Remote, or to one over a copy of the journals of the data directory.
func connect(ctx context.Context, cfg Config) (nc *nats.Conn, done func() error, err error) {
	if cfg.Remote != nil {
		nc, err = cfg.Remote.Connect(ctx, "quartet-verify", zap.NewNop())
		return nc, func() error { nc.Close(); return nil }, err
	}
	if _, err := os.Stat(store(cfg.DataDir)); err != nil {
		return nil, nil, fmt.Errorf("data-dir %s has no journals: %w", cfg.DataDir, err)
	}
	unlock, err := cfg.Lock(cfg.DataDir)
	if err != nil {
		return nil, nil, err
	}
	if err := removeCopies(cfg.DataDir); err != nil {
		return nil, nil, errors.Join(err, unlock())
	}
	dir, err := os.MkdirTemp(cfg.DataDir, copyDir)
	if err != nil {
		return nil, nil, errors.Join(err, unlock())
	}
	remove := func() error { return errors.Join(os.RemoveAll(dir), unlock()) }
	for _, plane := range cfg.Planes {
		segments, err := datadir.Segments(store(cfg.DataDir), account, plane)
		if err != nil {
			return nil, nil, errors.Join(err, remove())
		}
		for _, seg := range segments {
			if err := os.CopyFS(blockfile.Stream(dir, account, seg.Stream()), os.DirFS(seg.Dir)); err != nil {
				return nil, nil, errors.Join(err, remove())
			}
		}
	}
	if err := salvage.Finish(dir, account, zap.NewNop()); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	srv, err := natsd.Start(natsd.Config{StoreDir: dir, Port: natsd.InProcess, Bulk: true})
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	if nc, err = srv.Connect("quartet-verify"); err != nil {
		srv.Stop()
		return nil, nil, errors.Join(err, remove())
	}
	return nc, func() error {
		nc.Close()
		srv.Stop()
		return remove()
	}, nil
}

// removeCopies removes what a Run that was killed left in a data directory, which must be locked.
func removeCopies(dataDir string) error {
	entries, err := os.ReadDir(dataDir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), copyDir) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dataDir, e.Name())))
		}
	}
	return err
}

// archives returns where the archives are.
func (cfg *Config) archives() archives.Place {
	if cfg.Archives == (archives.Place{}) && cfg.Remote == nil {
		return archives.Place{Dir: datadir.Archive(cfg.DataDir)}
	}
	return cfg.Archives
}

// reading reads the journal of one partition.
type reading struct {
	archives.JournalConfig
	nc     *nats.Conn
	plane  string
	number int

	recorded framelog.Witness // how far it was written, as witnesses say
	stored   bool             // the plane has streams
}

// partition reads the archive, and the log in a cluster on each server that has a replica of it.
func (r *reading) partition(ctx context.Context) (all []Journal, err error) {
	var damage []error
	r.Damage = func(err error) { damage = append(damage, err) }
	begun := archives.BeginJournal(r.JournalConfig, r.recorded) // before the journal is read, which may grow meanwhile
	if err := begun.Archived(ctx); err != nil {
		return nil, err
	}
	var log *jetlog.Log
	var servers []string
	if r.stored {
		if log, err = jetlog.New(r.nc, r.plane, r.number); err != nil {
			return nil, err
		}
		if servers, err = log.Servers(ctx); err != nil {
			return nil, err
		}
	}
	if len(servers) == 0 {
		servers = []string{""}
	}
	for _, server := range servers {
		v := Journal{Partition: r.Partition, Server: server, Damage: slices.Clone(damage)}
		j := begun.Fork(func(err error) { v.Damage = append(v.Damage, err) })
		err := readLog(ctx, j, log, server)
		if errors.Is(err, jetlog.ErrIncomplete) {
			v.Damage = append(v.Damage, fmt.Errorf("the journal of %s ends at frame %d: %w", v.Partition, j.End.Seq,
				err))
			err = nil
		}
		if err == nil {
			err = j.Finish(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("the journal of %s: %w", v.Partition, err)
		}
		v.Frames, v.Events, v.End, v.Segments, v.ArchivedFrames = j.Frames, j.Events, j.End, j.Segments,
			j.ArchivedFrames
		v.Erased, v.Removed = j.Erased, j.Removed
		all = append(all, v)
	}
	return all, nil
}

// attempts is how often a log is read at most while segments that were archived before are dropped from it.
const attempts = 10

// readLog reads what is behind the archive in a log, if there is one; the replicas on one server, unless server is "".
// Segments that are archived while they are read are read in the archive.
func readLog(ctx context.Context, j *archives.Journal, log *jetlog.Log, server string) error {
	if log == nil {
		return nil
	}
	began := uint64(0)
	for n := 1; ; n++ {
		segments, err := log.Segments(ctx)
		if err != nil || len(segments) == 0 {
			return err
		}
		frame := func(seq uint64, f framelog.Frame) error {
			if seq <= began {
				return nil // it was read before
			}
			return j.Frame(ctx, seq, f)
		}
		if server == "" {
			err = log.Scan(ctx, max(j.End.Seq+1, segments[0].First), frame)
		} else {
			err = log.ScanReplica(ctx, server, frame)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		before := j.ArchiveEnd
		if archiveErr := j.Archived(ctx); archiveErr != nil {
			return errors.Join(err, archiveErr)
		}
		// behind what was archived before
		dropped := errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, framelog.ErrTrimmed)
		if j.ArchiveEnd == before && (!dropped || n >= attempts) {
			return err
		}
		began = j.End.Seq
	}
}

// readLines reads the envelopes of a frame's lines, which follow the wal_seq before.
func readLines(f framelog.Frame, before uint64) error {
	for i, line := range framelog.SplitLines(f.Body) {
		raw, err := journal.ParseLine(line)
		if err != nil {
			return fmt.Errorf("line %d cannot be read: %w", i+1, err)
		}
		if want := before + uint64(i) + 1; raw.WalSeq != want {
			return fmt.Errorf("line %d has wal_seq %d, not %d", i+1, raw.WalSeq, want)
		}
	}
	return nil
}
