package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/archive"
	"quartet/pkg/id"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/natsd/salvage"
	"quartet/services/app/datadir"
	"quartet/services/app/repair"
	"quartet/services/app/scrub"
	taskoutput "quartet/services/task/output"
)

// account is the account of the streams of an embedded server.
const account = "$G"

// salvageBlocks checks the blocks of the journals before the embedded server opens them.
func salvageBlocks(cfg *Config, logger *zap.Logger) error {
	s := salvage.Config{Store: filepath.Join(cfg.DataDir, "nats"), Account: account, Dir: datadir.Salvage(cfg.DataDir), Now: time.Now(), Logger: logger}
	for _, plane := range planes {
		known, err := witness.Newest(datadir.Witness(cfg.DataDir), plane)
		if err != nil {
			return err
		}
		s.Streams = append(s.Streams, salvage.Stream{Name: jetlog.StreamName(plane), Subjects: []string{jetlog.SubjectPrefix(plane)}, Known: known})
	}
	_, err := salvage.Check(s)
	return err
}

// newScrubber builds the module that reads the journals of the embedded server in the background.
func newScrubber(w *wiring) *scrub.Scrubber {
	return scrub.New(scrub.Config{
		Store: filepath.Join(w.cfg.DataDir, "nats"), Account: account, SalvageDir: datadir.Salvage(w.cfg.DataDir), Planes: planes, Rate: int64(w.cfg.ScrubRate) << 20,
		Partitions: w.broker.partitions, Witness: w.broker.witness, Report: w.broker.feeds.Damage.ReportStored, Metrics: w.metrics, Logger: w.logger.Named("scrub"),
	})
}

// Repair repairs the journals of an embedded NATS server with these settings; see repair.Run. from is the backup that it
// may take frames from; one without a File is none.
func Repair(ctx context.Context, cfg Config, from Backup, stores, acceptLoss []string, apply bool) (repair.Result, error) {
	if err := cfg.Complete(); err != nil {
		return repair.Result{}, err
	}
	if cfg.NATSURL != "" {
		return repair.Result{}, errors.New("the journals are on the NATS servers of nats-url, which keep replicas of each: stop the server whose replica is damaged, " +
			"move the directory of the stream away, and start it; it copies the stream from the others. If no replica is intact, restore a backup")
	}
	r := repair.Config{
		DataDir: cfg.DataDir, WitnessDir: datadir.Witness(cfg.DataDir), SalvageDir: datadir.Salvage(cfg.DataDir), Account: account, Planes: planes, Output: taskoutput.StreamName,
		Stores: stores, AcceptLoss: acceptLoss, Apply: apply, Lock: datadir.Lock, Sync: datadir.Sync, Now: time.Now(), NewID: id.New().New,
	}
	if from.File != "" {
		keys, err := from.keys(cfg)
		if err != nil {
			return repair.Result{}, err
		}
		f, err := os.Open(from.File)
		if err != nil {
			return repair.Result{}, err
		}
		defer f.Close()
		opened, err := archive.Open(f, keys)
		if err != nil {
			return repair.Result{}, err
		}
		r.Backup = func(visit func(archive.Message) error) (archive.Manifest, error) {
			m, _, err := opened.Read(archive.Visitor{Message: visit})
			return m, err
		}
	}
	return repair.Run(ctx, r)
}
