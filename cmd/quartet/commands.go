//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"quartet/pkg/confine"
	"quartet/pkg/fault"
	"quartet/pkg/sandboxes"
	"quartet/pkg/tracing"
	"quartet/services/app"
	"quartet/services/cli/workers"
	"quartet/services/worker"
)

// executeCommands runs `quartet worker --root` until ctx ends, and then stops it: the same worker as
// in `quartet dev`, but as a process of its own, which may be on another machine (SPEC T4).
func executeCommands(ctx context.Context, conn grpc.ClientConnInterface, o workers.Options) error {
	if err := confine.Protect(); err != nil {
		return fmt.Errorf("protect the memory of this process: %w", err)
	}
	logger, err := app.NewLogger("info")
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }() // stderr cannot always be synced
	tracer, flush, err := tracing.ForClient(ctx, "quartet-worker", o.ID)
	if err != nil {
		return fault.InvalidArgument.New(err.Error())
	}
	defer flush()
	var confinement *sandboxes.Config
	if !o.Unconfined {
		confinement = &sandboxes.Config{
			Helper: o.Confine, Network: confine.Network(o.Network), Readable: o.Readable,
			Hidden: o.Hidden,
		}
	}
	w, err := worker.New(worker.Config{
		Tracer: tracer, Confinement: confinement,
		ID: o.ID, Roots: o.Roots, Isolate: worker.Isolation(o.Isolate), Capacity: o.Capacity, StateDir: o.StateDir,
		Labels: o.Labels, Pools: o.Pools,
		MaxMemory: o.MaxMemory, MaxProcesses: o.MaxProcesses, Guard: o.Guard, Logger: logger,
		Dial: func() (grpc.ClientConnInterface, error) { return conn, nil },
	})
	if err != nil {
		return fault.InvalidArgument.New(err.Error())
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	pools := strings.Join(o.Pools, ", ")
	if pools == "" {
		pools = "default"
	}
	o.Report(fmt.Sprintf("%s executes commands of %s under %s", o.ID, pools, strings.Join(o.Roots, ", ")))
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTerm)
	defer cancel()
	return w.Stop(stopping)
}
