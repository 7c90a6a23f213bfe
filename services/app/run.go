package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"quartet/pkg/archive"
	"quartet/pkg/client"
	"quartet/pkg/conf"
	"quartet/pkg/fault"
	"quartet/services/board"
	"quartet/services/cli"
	"quartet/services/mcp"
	"quartet/services/runner"
)

const (
	startTerm = 2 * time.Minute // a million events are loaded well within
	stopTerm  = 20 * time.Second
)

// Servers gives the command line what it needs to run servers.
func Servers() cli.Servers {
	var cfg Config
	var settings *conf.Set
	var config string
	run := func(ctx context.Context, services []string) error {
		if err := settings.Load(config); err != nil {
			return err
		}
		cfg.Serve, cfg.WorkerGuard = services, cli.GuardCommand()
		return Run(ctx, cfg)
	}
	return cli.Servers{
		Flags: func(fs *pflag.FlagSet) {
			settings = cfg.Flags(fs)
			fs.StringVar(&config, "config", "", "A YAML or JSON file of settings; flags and QUARTET_… variables win over it")
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
		Restore: func(ctx context.Context, _ *pflag.FlagSet, file string) (archive.Manifest, archive.Totals, error) {
			if err := settings.Load(config); err != nil {
				return archive.Manifest{}, archive.Totals{}, err
			}
			return Restore(ctx, cfg, file)
		},
		Replay: func(log io.Reader) (cli.WAL, error) {
			r, err := board.ReplayWAL(log)
			return cli.WAL{Board: r.Board, Lines: r.Lines, Torn: r.Torn}, err
		},
		MCP: func(ctx context.Context, conn grpc.ClientConnInterface, o cli.MCPOptions) error {
			s, err := mcp.New(mcp.Config{Version: Version()}, mcp.Deps{
				Conn: func(string) (grpc.ClientConnInterface, error) { return conn, nil },
			})
			if err != nil {
				return err
			}
			return s.ServeStdio(ctx, o.In, o.Out, o.AgentID, o.Create)
		},
		Run: func(ctx context.Context, conn grpc.ClientConnInterface, o cli.RunOptions) error {
			r, err := runner.New(runner.Config{
				AgentIDs: o.AgentIDs, Provider: o.Provider, Model: o.Model, BaseURL: o.BaseURL, Key: os.Getenv(runner.KeyVariable(o.Provider)),
				MaxTokens: o.MaxTokens, MaxRounds: o.MaxRounds, MaxTurns: o.MaxTurns, Concurrency: o.Concurrency,
				Workspace: o.Workspace, System: o.System, Out: o.Out, JSON: o.JSON, Colour: o.Colour,
			}, client.New(conn))
			if err != nil {
				return fault.InvalidArgument.New(err.Error())
			}
			return r.Run(ctx)
		},
		Worker:  executeCommands,
		Guard:   cli.GuardCommand(),
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
	go TendMemory(ctx)
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
