package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"quartet/pkg/version"
)

const (
	startTerm = 2 * time.Minute // a million events are loaded well within
	// StopTerm is how long a process that is asked to end takes at most.
	StopTerm = 20 * time.Second
)

// Run serves until ctx ends, then stops in order.
func Run(ctx context.Context, cfg Config) error {
	go TendMemory(ctx)
	logger, err := NewLogger(cfg.LogLevel)
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }() // stderr cannot always be synced
	a, err := New(cfg, logger, version.Get().String())
	if err != nil {
		return err
	}
	began := time.Now()
	starting, cancel := context.WithTimeout(ctx, startTerm)
	defer cancel()
	if err := a.Start(starting); err != nil {
		return err
	}
	a.hello(time.Since(began))
	<-ctx.Done()
	logger.Info("stopping")
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTerm)
	defer cancel()
	return a.Stop(stopping)
}

// hello tells a person where to go; programs read /readyz.
func (a *App) hello(took time.Duration) {
	fmt.Fprintf(os.Stderr, "quartet %s is up after %s, data in %s\n", version.Get().String(), took.Round(time.Millisecond), a.cfg.DataDir)
	if addr := a.HTTPAddr(); addr != "" {
		at := a.scheme() + "://" + addr
		fmt.Fprintf(os.Stderr, "  REST   %s/v1   OpenAPI %s/openapi.json   events %s/v1/events\n", at, at, at)
	}
	fmt.Fprintf(os.Stderr, "  gRPC   %s\n", a.GRPCAddr())
}

// NewLogger writes JSON lines to stderr, from level on.
func NewLogger(level string) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log-level %q: use debug, info, warn or error", level), err)
	}
	c := zap.NewProductionConfig()
	c.Level = zap.NewAtomicLevelAt(l)
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	return c.Build()
}
