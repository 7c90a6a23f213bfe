package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// A second backup does not replace the first one, unless that is demanded, and keeps it where it fails.
func TestBackupsAreKept(t *testing.T) {
	proc.Long(t)
	m := newMachine(t)
	quartet := func(args ...string) (string, error) {
		out, err := exec.CommandContext(soon(t), m.bin, append(args, "--address", m.srv.GRPC)...).CombinedOutput()
		return string(out), err
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "one.backup")
	out, err := quartet("backup", file)
	require.NoError(t, err, out)
	first := must.Value(os.ReadFile(file))(t)
	out, err = quartet("backup", file)
	require.Error(t, err)
	require.Contains(t, out, "exists and is kept")
	require.Contains(t, out, "--replace")
	now := must.Value(os.ReadFile(file))(t)
	require.Equal(t, first, now)
	out, err = quartet("backup", file, "--replace")
	require.NoError(t, err, out)
	now = must.Value(os.ReadFile(file))(t)
	require.NotEqual(t, first, now, "each backup has keys of its own")
	require.Len(t, must.Value(os.ReadDir(dir))(t), 1, "nothing temporary is left")
}

// Each line of the log is JSON: what is for people is on stdout. The addresses are in the log too.
func TestTheLogIsJSON(t *testing.T) {
	proc.Long(t)
	home := newMachine(t) // for its home only
	grpc := must.Value(proc.FreeAddr())(t)
	rest := must.Value(proc.FreeAddr())(t)
	cmd := exec.CommandContext(soon(t), home.bin, "dev", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--grpc-addr", grpc, "--http-addr", rest, "--worker-roots", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var log bytes.Buffer
	cmd.Stderr = &log
	out := must.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for banner := ""; !strings.Contains(banner, "  gRPC   "+grpc); banner += lines.Text() + "\n" {
		require.True(t, lines.Scan(), banner)
	}

	// A client of REST at the gRPC address is told so, and one of gRPC at that of REST.
	resp := must.Value(http.Get("http://" + grpc + "/v1/agents"))(t)
	body := must.Value(io.ReadAll(resp.Body))(t)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
	require.Contains(t, string(body), "this is the gRPC address")
	said, err := exec.CommandContext(soon(t), home.bin, "agent", "list", "--address", rest).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "it is that of REST")

	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, out)
	require.NoError(t, cmd.Wait())
	up := false
	for line := range strings.Lines(log.String()) {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		up = up || entry["msg"] == "up" && entry["grpc_addr"] == grpc && entry["http_addr"] == rest
	}
	require.True(t, up, log.String())
}

// A variable that is misspelt is refused by a server, by name and without its value.
func TestMisspeltVariablesOfAServer(t *testing.T) {
	proc.Long(t)
	cmd := exec.CommandContext(soon(t), binary(t), "dev", "--data-dir", filepath.Join(t.TempDir(), "data"))
	cmd.Env = append(os.Environ(), "QUARTET_NATS_ULR=nats://secret@h:1", "QUARTET_PORT=tcp://10.0.0.1:7480")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "QUARTET_NATS_ULR is no setting; did you mean QUARTET_NATS_URL?")
	require.NotContains(t, string(out), "QUARTET_PORT")
	require.NotContains(t, string(out), "secret")
}

// `quartet mcp` starts the server of the user where none runs. It goes on when the session ends, a second session uses
// it, and --no-start starts none.
func TestC5_MCPStartsAServer(t *testing.T) {
	proc.Long(t)
	bin, home := binary(t), t.TempDir()
	grpc := must.Value(proc.FreeAddr())(t)
	rest := must.Value(proc.FreeAddr())(t)
	data := filepath.Join(home, "data")
	session := func(args ...string) (out, errs string) {
		cmd := exec.CommandContext(soon(t), bin,
			append([]string{"mcp", "--agent", "keeper", "--create", "--tools", "memory", "--address", grpc},
				args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "QUARTET_GRPC_ADDR="+grpc, "QUARTET_HTTP_ADDR="+
			rest, "QUARTET_DATA_DIR="+data)
		cmd.Stdin = strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
				`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
				`{"jsonrpc":"2.0","id":2,"method":"tools/list"}` + "\n")
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		require.NoError(t, cmd.Run(), e.String())
		return o.String(), e.String()
	}
	out, errs := session("--no-start")
	require.Contains(t, out, "No Quartet server answers")
	require.NotContains(t, errs, "started a server")
	require.NoDirExists(t, data)

	// A child of the session that outlives it becomes one of this process, which ends it.
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) })
	out, errs = session()
	server := serverOf(t, data)
	t.Cleanup(func() {
		require.NoError(t, syscall.Kill(server, syscall.SIGKILL))
		must.Value(syscall.Wait4(server, nil, 0, nil))(t)
	})
	require.Contains(t, errs, "started a server at "+grpc)
	require.Contains(t, out, "CreateWorkItem")
	require.NotContains(t, out, "No Quartet server answers")
	require.FileExists(t, filepath.Join(home, ".local", "state", "quartet", "server.log"))

	out, errs = session()
	require.NotContains(t, errs, "started a server", "the one that runs is used")
	require.Contains(t, out, "CreateWorkItem")
	require.Equal(t, server, serverOf(t, data))
	command := must.Value(os.ReadFile(filepath.Join("/proc", strconv.Itoa(server), "cmdline")))(t)
	require.Contains(t, string(command), "--embedded-worker\x00off", "it executes no commands")
}

// Where a server at another address has the data, `quartet mcp` starts none and says where it is, on stderr and to the
// model.
func TestC5_MCPNamesTheServerThatHasTheData(t *testing.T) {
	proc.Long(t)
	bin, home := binary(t), t.TempDir()
	var at []string
	for range 4 {
		at = append(at, must.Value(proc.FreeAddr())(t))
	}
	environment := append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "QUARTET_DATA_DIR="+
		filepath.Join(home, "data"))
	server := exec.CommandContext(soon(t), bin, "dev", "--grpc-addr", at[0], "--http-addr", at[1], "--embedded-worker",
		"off")
	server.Env = environment
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		require.NoError(t, server.Process.Signal(syscall.SIGTERM))
		require.NoError(t, server.Wait())
	})
	require.Eventually(t, func() bool {
		ready := exec.CommandContext(soon(t), bin, "ready", "--address", at[0])
		ready.Env = environment
		return ready.Run() == nil
	}, time.Minute, 50*time.Millisecond)

	cmd := exec.CommandContext(soon(t), bin, "mcp", "--agent", "keeper", "--create", "--address", at[2])
	cmd.Env = append(environment, "QUARTET_GRPC_ADDR="+at[2], "QUARTET_HTTP_ADDR="+at[3])
	cmd.Stdin = strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), errs.String())
	require.Contains(t, errs.String(), "its data directory is in use by a server that runs already")
	require.Contains(t, errs.String(), "--address "+at[0])
	require.Contains(t, out.String(), "One of this user runs at "+at[0])
}

// serverOf returns the process that has a data directory in its environment and is a server.
func serverOf(t *testing.T, data string) int {
	t.Helper()
	entries := must.Value(os.ReadDir("/proc"))(t)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.Contains(environment, []byte("QUARTET_DATA_DIR="+data+"\x00")) &&
			bytes.Contains(command, []byte("\x00dev\x00")) {
			return pid
		}
	}
	require.FailNow(t, "no server runs for "+data)
	return 0
}
