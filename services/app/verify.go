package app

import (
	"context"

	"quartet/services/storage/datadir"
	"quartet/services/storage/verify"
)

// Verify reads the journals and other streams of the installation with these settings; see verify.Run.
func Verify(ctx context.Context, cfg Config) (verify.Result, error) {
	if err := cfg.Complete(); err != nil {
		return verify.Result{}, err
	}
	v := verify.Config{
		DataDir: cfg.DataDir, WitnessDir: datadir.Witness(cfg.DataDir), Planes: planes,
		Lock: datadir.Lock, Archives: cfg.places().Archived(),
	}
	if cfg.NATSURL != "" {
		v.Remote = new(cfg.remote())
	}
	return verify.Run(ctx, v)
}
