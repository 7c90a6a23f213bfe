// Package dev runs a whole server, as `quartet dev` does, in the process of a test, so that
// clients are tested against a real server.
package dev

import (
	"context"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/client"
	"quartet/pkg/must"
	"quartet/services/app"
	"quartet/tests/proc"
)

// Config returns the configuration of a server with its data in dir and with free ports of
// loopback, whose commands run in dir, and which does not publish events. Other settings
// have their defaults.
func Config(dir string) (app.Config, error) {
	var cfg app.Config
	cfg.Flags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	var err error
	if cfg.GRPCAddr, err = proc.FreeAddr(); err != nil {
		return cfg, err
	}
	cfg.HTTPAddr, err = proc.FreeAddr()
	cfg.DataDir, cfg.WorkerRoots, cfg.Publish = dir, []string{dir}, false
	// the binary of a test cannot be started as the helper of a sandbox
	cfg.EmbeddedWorker, cfg.WorkerUnconfined = app.EmbeddedOn, true
	return cfg, err
}

// Server is a server and a client of it. The server can be stopped and started again with
// the same data and ports.
type Server struct {
	*client.Client
	Cfg app.Config
	t   testing.TB
	app *app.App
}

// Start runs a server until the test ends, and connects a client to it.
func Start(t testing.TB, opts ...client.Option) *Server {
	cfg := must.Value(Config(t.TempDir()))(t)
	s := &Server{Cfg: cfg, t: t}
	s.Up()
	t.Cleanup(s.Down)
	s.Client = must.Value(client.Dial(cfg.GRPCAddr, opts...))(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// URL returns the base URL of REST and MCP.
func (s *Server) URL() string { return "http://" + s.Cfg.HTTPAddr }

// Up starts the server and returns when it is ready.
func (s *Server) Up() {
	s.app = must.Value(app.New(s.Cfg, zap.NewNop(), "test"))(s.t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(s.t, s.app.Start(ctx))
	require.Eventually(s.t, func() bool { return s.app.Ready() == nil }, 30*time.Second, 5*time.Millisecond)
}

// Down stops the server in order. It is idempotent.
func (s *Server) Down() {
	if s.app == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.NoError(s.t, s.app.Stop(ctx))
	s.app = nil
}

// Within returns a context that ends after a minute, so that calls of a test do not hang.
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
