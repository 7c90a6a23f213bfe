package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"quartet/pkg/conf"
	"quartet/services/cli"
)

const (
	startTerm = 2 * time.Minute // a million events are loaded well within
	stopTerm  = 20 * time.Second
)

// gcPercent trades memory for time: the live heap is records that stay, and
// collecting it at every doubling costs a fifth of the throughput.
const gcPercent = 400

// Servers gives the command line what it needs to run servers.
func Servers() cli.Servers {
	var cfg Config
	var settings *conf.Set
	var file string
	run := func(ctx context.Context, services []string) error {
		if err := settings.Load(file); err != nil {
			return err
		}
		cfg.Serve = services
		return Run(ctx, cfg)
	}
	return cli.Servers{
		Flags: func(fs *pflag.FlagSet) {
			settings = cfg.Flags(fs)
			fs.StringVar(&file, "config", "", "A YAML or JSON file of settings; flags and QUARTET_… variables win over it")
		},
		Dev: func(ctx context.Context, _ *pflag.FlagSet) error {
			return run(ctx, nil)
		},
		Serve: func(ctx context.Context, services []string, _ *pflag.FlagSet) error {
			if len(services) == 1 && services[0] == "all" {
				services = nil
			}
			return run(ctx, services)
		},
		Version: Version(),
	}
}

// Version is the build's, from its module and commit.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && (v == "" || v == "(devel)") {
			v = "dev-" + s.Value[:12]
		}
	}
	return v
}

// Run serves until ctx ends, then stops in order.
func Run(ctx context.Context, cfg Config) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	logger, err := newLogger(cfg.LogLevel)
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }() // stderr cannot always be synced
	a, err := New(cfg, logger, Version())
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
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTerm)
	defer cancel()
	return a.Stop(stopping)
}

// hello tells a person where to go; programs read /readyz.
func (a *App) hello(took time.Duration) {
	fmt.Fprintf(os.Stderr, "quartet %s is up after %s, data in %s\n", Version(), took.Round(time.Millisecond), a.cfg.DataDir)
	if addr := a.HTTPAddr(); addr != "" {
		fmt.Fprintf(os.Stderr, "  REST   http://%s/v1   OpenAPI http://%s/openapi.json   events http://%s/v1/events\n", addr, addr, addr)
	}
	fmt.Fprintf(os.Stderr, "  gRPC   %s\n", a.GRPCAddr())
}

func newLogger(level string) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log-level %q: use debug, info, warn or error", level), err)
	}
	c := zap.NewProductionConfig()
	c.Level = zap.NewAtomicLevelAt(l)
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	return c.Build()
}
