package tests

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	"quartet/tests/attack"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// built is the binary that all tests run: linking it takes seconds.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func binary(t *testing.T) string {
	t.Helper()
	proc.Long(t)
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "quartet-tests-"); built.err == nil { //nolint:usetesting // it outlives the test that builds it
			built.path, built.err = proc.Build(built.dir, "quartet/cmd/quartet", "quartet")
		}
	})
	require.NoError(t, built.err)
	return built.path
}

// startServer starts a server with NATS inside over a directory, until the end of the test.
func startServer(t *testing.T, ctx context.Context, dir string, args ...string) *proc.Quartet {
	t.Helper()
	srv := must.Value(proc.NewQuartet(binary(t), dir, "", args...))(t)
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })
	return srv
}

// dial returns a connection to a server, until the end of the test.
func dial(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn := must.Value(load.Dial(addr, opts...))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestMain(m *testing.M) {
	attack.Main()
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}
