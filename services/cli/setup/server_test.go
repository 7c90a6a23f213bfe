package setup

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	"quartet/services/cli/exit"
)

// serve runs a server of this user until the test ends, and returns its address.
func serve(t *testing.T) string {
	l := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	token := must.Value(localtoken.Publish(l.Addr().String(), localtoken.Prefix+"one"))(t)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
		require.NoError(t, token.Remove())
	})
	return l.Addr().String()
}

// Setup says whether a server answers where the settings look for one, and where one of the user does.
func TestSetupLooksForTheServer(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("QUARTET_ADDRESS", freeAddr(t))
	here, dir, away := os.Getenv("QUARTET_ADDRESS"), filepath.Join(t.TempDir(), "it's"), freeAddr(t)
	require.NoError(t, os.Mkdir(dir, 0o755))

	out, code := quartet(t, "claude", "--dir", dir)
	require.Zero(t, code, out)
	require.Contains(t, out, "No server answers at "+here+" yet: quartet mcp starts one")
	out, code = quartet(t, "claude", "--dir", dir, "--check")
	require.Zero(t, code, "quartet mcp starts one: "+out)

	out, code = quartet(t, "claude", "--dir", dir, "--address", away)
	require.Zero(t, code, "a server may be started later: "+out)
	require.Contains(t, out, "warning: no server answers at "+away+". Start one: quartet dev --grpc-addr "+away)
	out, code = quartet(t, "claude", "--dir", dir, "--address", away, "--check")
	require.Equal(t, exit.Failed, code, out)
	require.Regexp(t, `missing +server +`+away, out)
	require.NotContains(t, out, "enter what is missing", "the settings have everything")

	out, code = quartet(t, "claude", "--dir", dir, "--address", away, "--agent", "a", "--check")
	require.Equal(t, exit.Failed, code, out)
	require.Contains(t, out, "enter what is missing with: quartet setup claude --agent a --dir "+quoteShell(dir)+
		" --address "+away)

	running := serve(t)
	out, code = quartet(t, "claude", "--dir", dir)
	require.Zero(t, code, out)
	require.Contains(t, out, "no server answers at "+here+"; one of yours runs at "+running)
	require.Contains(t, out, "quartet setup claude --dir "+quoteShell(dir)+" --address "+running)
	_, code = quartet(t, "claude", "--dir", dir, "--check")
	require.Equal(t, exit.Failed, code, "the model would have no tools, or those of another memory")

	out, code = quartet(t, "claude", "--dir", dir, "--address", running)
	require.Zero(t, code, out)
	require.NotContains(t, out, "warning")
	out, code = quartet(t, "claude", "--dir", dir, "--address", running, "--check", "-o", "json")
	require.Zero(t, code, out)
	require.Contains(t, out, `"status": "answers"`)
	out, code = quartet(t, "claude", "--dir", dir, "--remove")
	require.Zero(t, code, out)
	require.NotContains(t, out, "server answers")
}
