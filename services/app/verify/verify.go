// Package verify reads the journals and the other streams of an installation and reports what is missing or was changed.
package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/lines"
	"quartet/pkg/journal/witness"
	"quartet/pkg/journal/witness/shared"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/app/datadir"
	"quartet/services/app/derived"
)

// Config says where the journals are.
type Config struct {
	DataDir, WitnessDir string
	Planes              []string
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
	End            framelog.End
	Damage         []error // in the order of the journal
}

// Result is what Run found.
type Result struct {
	Journals []Journal
	Streams  []derived.Report // that are not journals: each that exists, in a cluster each replica
}

// copyDir begins the names of the directories in which Verify reads copies of journals.
const copyDir = ".verify-"

// Run reads all journals of an installation to their ends: that their frames continue each other and have the content
// that was written, that each line can be read, and that they go as far as the witnesses of the data directory. It goes
// on behind damage. Journals of an embedded NATS server are copied for that, since a server that opens damaged files
// changes them, and no server may run. With Remote servers may run. It also reads the streams that are not journals, which
// need no copy.
func Run(ctx context.Context, cfg Config) (all Result, err error) {
	nc, done, err := connect(ctx, cfg)
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if all.Journals, err = journals(ctx, cfg, nc); err != nil {
		return all, err
	}
	for _, s := range derived.Streams {
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

// account is the account of the streams of an embedded server.
const account = "$G"

// store returns the directory of an embedded server.
func store(dataDir string) string { return filepath.Join(dataDir, "nats") }

// journals reads all journals.
func journals(ctx context.Context, cfg Config, nc *nats.Conn) (all []Journal, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	known, err := shared.Read(ctx, nc)
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
		for i := range max(n, witnessed, shared.Partitions(known, plane)) {
			recorded := shared.Or(witness.At(cfg.WitnessDir, plane, i), known[framelog.PartitionName(plane, i)])
			vs, err := verifyPartition(ctx, recorded, nc, plane, i, n > 0)
			if err != nil {
				return nil, err
			}
			all = append(all, vs...)
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

// verifyPartition reads the journal of one partition, in a cluster each replica of it. stored is false if the plane has
// no stream.
func verifyPartition(ctx context.Context, recorded framelog.Witness, nc *nats.Conn, plane string, partition int, stored bool) ([]Journal, error) {
	if !stored {
		v, err := verifyLog(framelog.PartitionName(plane, partition), recorded, func(func(uint64, framelog.Frame) error) error { return nil })
		return []Journal{v}, err
	}
	log, err := jetlog.New(nc, plane, partition)
	if err != nil {
		return nil, err
	}
	servers, err := log.Servers(ctx)
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		servers = []string{""}
	}
	var all []Journal
	for _, server := range servers {
		v, err := verifyLog(framelog.PartitionName(plane, partition), recorded, func(read func(uint64, framelog.Frame) error) error {
			if server == "" {
				return log.Scan(ctx, 0, read)
			}
			return log.ScanReplica(ctx, server, read)
		})
		if err != nil {
			return nil, err
		}
		v.Server = server
		all = append(all, v)
	}
	return all, nil
}

// verifyLog reads the log of one partition with scan.
func verifyLog(name string, recorded framelog.Witness, scan func(func(uint64, framelog.Frame) error) error) (v Journal, err error) {
	v.Partition = name
	// Before the journal is read, which may grow meanwhile.
	compared, err := framelog.Compare(name, recorded)
	if err != nil {
		v.Damage = append(v.Damage, err)
	}
	err = scan(func(seq uint64, f framelog.Frame) error {
		next, intact, err := v.End.Next(name, seq, f)
		if err != nil {
			v.Damage = append(v.Damage, err)
			next, intact = framelog.Anchor(name, seq, f)
		}
		before := next.WalSeq
		if n := uint64(len(lines.Split(f.Body))); n <= before {
			before -= n
		}
		if !intact {
			v.Damage = append(v.Damage, framelog.Altered(name, framelog.End{Seq: v.End.Seq, WalSeq: before}, seq))
		} else if err := readLines(f, before); err != nil {
			v.Damage = append(v.Damage, fmt.Errorf("the journal of %s is damaged at frame %d: %w", name, seq, err))
		}
		if compared != nil {
			if err := compared.Read(next); err != nil {
				v.Damage = append(v.Damage, err)
			}
		}
		v.Frames, v.Events, v.End = v.Frames+1, v.Events+next.WalSeq-before, next
		return nil
	})
	switch {
	case errors.Is(err, jetlog.ErrIncomplete):
		v.Damage = append(v.Damage, fmt.Errorf("the journal of %s ends at frame %d: %w", name, v.End.Seq, err))
	case err != nil:
		return v, fmt.Errorf("the journal of %s: %w", name, err)
	}
	if compared != nil {
		if err := compared.Missing(v.End); err != nil {
			v.Damage = append(v.Damage, err)
		}
	}
	return v, nil
}

// readLines reads the envelopes of a frame's lines, which follow the wal_seq before.
func readLines(f framelog.Frame, before uint64) error {
	for i, line := range lines.Split(f.Body) {
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
