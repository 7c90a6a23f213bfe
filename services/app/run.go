package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"quartet/pkg/confine"
	"quartet/pkg/version"
)

const (
	// startTerm bounds the start. Loading a million events takes much less.
	startTerm = 2 * time.Minute
	// StopTerm bounds an orderly stop of a process.
	StopTerm = 20 * time.Second
)

// Run starts a process with these settings and serves until ctx ends, then stops it, within
// StopTerm. It returns the error of the start or of the stop.
func Run(ctx context.Context, cfg Config) error {
	go AdjustGC(ctx, cfg.memory())
	if err := confine.Protect(); err != nil {
		return fmt.Errorf("protect the memory of this process: %w", err)
	}
	logger, err := NewLogger(cfg.LogLevel)
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }() // stderr cannot always be synced
	a, err := New(cfg, logger, version.Get().String())
	if err != nil {
		return err
	}
	if awaitNATS(ctx, &a.cfg, logger); ctx.Err() != nil {
		return nil // it was stopped before there was anything to stop
	}
	started := time.Now()
	starting, cancel := context.WithTimeout(ctx, startTerm)
	defer cancel()
	if err := a.Start(starting); err != nil {
		return err
	}
	logger.Info("up", zap.Duration("start", time.Since(started)), zap.String("grpc_addr", a.GRPCAddr()),
		zap.String("http_addr", a.HTTPAddr()), zap.String("data_dir", a.cfg.DataDir))
	a.printAddresses(os.Stdout, time.Since(started))
	<-ctx.Done()
	logger.Info("stopping")
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTerm)
	defer cancel()
	return a.Stop(stopping)
}

// printAddresses writes the addresses of the server for people to out, which is not the stream of the
// log: every line of that is JSON. Programs read /readyz.
func (a *App) printAddresses(out io.Writer, took time.Duration) {
	var text strings.Builder
	fmt.Fprintf(&text, "quartet %s is up after %s, data in %s\n", version.Get().String(), took.Round(time.Millisecond),
		a.cfg.DataDir)
	if addr := a.HTTPAddr(); addr != "" {
		at := a.scheme() + "://" + addr
		fmt.Fprintf(&text, "  REST   %s/v1   OpenAPI %s/openapi.json   events %s/v1/events\n", at, at, at)
	}
	fmt.Fprintf(&text, "  gRPC   %s\n", a.GRPCAddr())
	if path := a.tokens.path(a.HTTPAddr()); path != "" {
		fmt.Fprintf(&text, "  token  curl -H @%s %s://%s/v1/agents\n", path, a.scheme(), a.HTTPAddr())
	}
	_, _ = io.WriteString(out, text.String()) // stdout may be closed, which is no reason to stop
}

// NewLogger returns a logger that writes JSON lines of level and above to stderr.
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
