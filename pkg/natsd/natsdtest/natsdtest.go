// Package natsdtest runs a real NATS server in the process of a test.
package natsdtest

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"quartet/pkg/natsd"
)

// Connect starts a server that keeps its streams in a directory of the test and listens on no
// port, and returns a connection to it. Both end with the test.
func Connect(t testing.TB) *nats.Conn {
	t.Helper()
	server, err := natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: natsd.InProcess})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	nc, err := server.Connect("test")
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
