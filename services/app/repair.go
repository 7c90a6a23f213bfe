package app

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"quartet/pkg/id"
	"quartet/services/storage/datadir"
	"quartet/services/storage/derived"
	"quartet/services/storage/repair"
	"quartet/services/storage/verify"
)

// account is the account of the streams of an embedded server.
const account = "$G"

// newScrubber builds the module that reads the journals of the embedded server in the background.
func newScrubber(w *wiring) *verify.Scrubber {
	return verify.NewScrubber(verify.ScrubConfig{
		Store: filepath.Join(w.cfg.DataDir, "nats"), Account: account, Archives: w.cfg.places().Archived().Config,
		SalvageDir: datadir.Salvage(w.cfg.DataDir), Planes: planes, Streams: derived.Stored,
		Rate:       int64(w.cfg.ScrubRate) << 20,
		Partitions: w.broker.partitions, Witness: w.broker.witness, Report: w.broker.feeds.Damage.ReportStored,
		Metrics: w.metrics, Logger: w.logger.Named("scrub"),
	})
}

// Repair repairs the journals of the embedded NATS server that cfg describes; see repair.Run, and repair.Config for
// stores, acceptLoss and apply. It may take frames from the backup from, unless from.File is empty.
func Repair(ctx context.Context, cfg Config, from Backup, stores, acceptLoss []string, apply bool) (repair.Result,
	error,
) {
	if err := cfg.Complete(); err != nil {
		return repair.Result{}, err
	}
	if cfg.NATSURL != "" {
		return repair.Result{}, errors.New("the journals are on the NATS servers of nats-url, which keep replicas of " +
			"each: stop the server whose replica is damaged (`quartet verify` names it), " +
			"remove jetstream in its store, and start it; it copies everything from the others. If no replica is " +
			"intact, restore a backup")
	}
	r := repair.Config{
		DataDir: cfg.DataDir, WitnessDir: datadir.Witness(cfg.DataDir), SalvageDir: datadir.Salvage(cfg.DataDir),
		Account: account, Planes: planes,
		Archives: cfg.places().Archived(), Stores: stores, AcceptLoss: acceptLoss, Apply: apply, Lock: datadir.Lock,
		Sync: datadir.Sync, Now: time.Now(), NewID: id.New().New,
	}
	if from.File != "" {
		keys, err := from.keys(cfg)
		if err != nil {
			return repair.Result{}, err
		}
		r.BackupFile, r.Keys = from.File, keys
	}
	return repair.Run(ctx, r)
}
