// Package dev runs a whole server in a test's own process, as `quartet dev`
// does in one of its own, so that clients can be tested against the real thing.
package dev

import (
	"context"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/client"
	"quartet/services/app"
	"quartet/tests/proc"
)

// Config returns a server's over a directory, on free ports of loopback. What a test
// does not set has its default.
func Config(dir string) (app.Config, error) {
	var cfg app.Config
	cfg.Flags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	var err error
	if cfg.GRPCAddr, err = proc.FreeAddr(); err != nil {
		return cfg, err
	}
	cfg.HTTPAddr, err = proc.FreeAddr()
	cfg.DataDir, cfg.WorkerRoots, cfg.Publish = dir, []string{dir}, false
	return cfg, err
}

// Server can be stopped and started anew over the same data and ports.
type Server struct {
	*client.Client
	Cfg app.Config
	t   testing.TB
	app *app.App
}

// Start runs a server until the test ends, and connects a client to it.
func Start(t testing.TB, opts ...client.Option) *Server {
	cfg, err := Config(t.TempDir())
	require.NoError(t, err)
	s := &Server{Cfg: cfg, t: t}
	s.Up()
	t.Cleanup(s.Down)
	s.Client, err = client.Dial(cfg.GRPCAddr, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// URL returns where REST and MCP are.
func (s *Server) URL() string { return "http://" + s.Cfg.HTTPAddr }

// Up starts the server and returns when it is ready.
func (s *Server) Up() {
	var err error
	s.app, err = app.New(s.Cfg, zap.NewNop(), "test")
	require.NoError(s.t, err)
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

// Within returns a context that ends a test which would hang.
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
