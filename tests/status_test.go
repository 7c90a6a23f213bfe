package tests

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// part starts a process with some services only. others are addresses of the rest.
func part(t *testing.T, ctx context.Context, dir, url, services, grpcAddr, httpAddr, others string) *proc.Process {
	t.Helper()
	own, shared := filepath.Join(dir, strings.ReplaceAll(services, " ", "-")), filepath.Join(dir, "archive")
	require.NoError(t, errors.Join(os.MkdirAll(own, 0o700), os.MkdirAll(shared, 0o700)))
	args := append([]string{"serve"}, strings.Fields(services)...)
	p := &proc.Process{
		Binary: binary(t), Log: filepath.Join(own, "server.log"),
		Args: append(args, "--open", "--nats-url", url, "--data-dir", own, "--key-file", filepath.Join(dir, "key"),
			"--archive", shared, "--grpc-addr", grpcAddr, "--http-addr", httpAddr, "--addresses", others),
		Ready: func(ctx context.Context) bool { return run(ctx, t, "ready", "--address", grpcAddr).err == nil },
	}
	require.NoError(t, p.Start(ctx))
	t.Cleanup(func() { _ = p.Thaw(); _ = p.Kill() })
	return p
}

// ran is what a command of the binary wrote.
type ran struct {
	out, errs string
	err       error
}

func run(ctx context.Context, t *testing.T, args ...string) ran {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary(t), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir())
	err := cmd.Run()
	return ran{out.String(), errs.String(), err}
}

// TestX17_EveryPlaneOfAnInstallation: two processes serve an installation. When the one with the agents is frozen, is
// killed, and was never started again, the other says so: at /readyz?all, in `quartet status` and in `quartet doctor`.
func TestX17_EveryPlaneOfAnInstallation(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	nats, url := natsProcess(t)
	require.NoError(t, nats.Start(ctx))
	t.Cleanup(func() { _ = nats.Kill() })
	var addrs [4]string
	for i := range addrs {
		addrs[i] = must.Value(proc.FreeAddr())(t)
	}
	rest := "work task waiting board identity gateway"
	of := func(addr, services string) string {
		var out []string
		for name := range strings.FieldsSeq(services) {
			out = append(out, name+"="+addr)
		}
		return strings.Join(out, ",")
	}
	agents := part(t, ctx, dir, url, "agent scheduler", addrs[0], addrs[1], of(addrs[2], rest))
	part(t, ctx, dir, url, rest, addrs[2], addrs[3], of(addrs[0], "agent scheduler"))
	readyz := func(path string) int {
		req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addrs[3]+path, nil))(t)
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Eventually(t, func() bool { return readyz("/readyz?all") == http.StatusOK }, time.Minute,
		100*time.Millisecond)
	status := func() ran { return run(ctx, t, "status", "--address", addrs[2]) }
	healthy := status()
	require.NoError(t, healthy.err, healthy.errs)
	require.Regexp(t, `(?m)^agent +up +1 +1$`, healthy.out)
	require.Regexp(t, `(?m)^work/0 +\d+ +\d`, healthy.out, "its journals")
	require.NotContains(t, healthy.out, "quartet-journal-work", "their streams are not listed once more")

	down := func() {
		t.Helper()
		require.Eventually(t, func() bool { return readyz("/readyz?all") == http.StatusServiceUnavailable },
			time.Minute, 100*time.Millisecond)
		require.Equal(t, http.StatusOK, readyz("/readyz"), "this process serves what it should")
		r := status()
		var code *exec.ExitError
		require.ErrorAs(t, r.err, &code)
		require.Equal(t, 1, code.ExitCode())
		require.Regexp(t, `(?m)^agent +down`, r.out)
		require.Contains(t, r.errs, "agent is down: no process")
		require.Contains(t, r.errs, "quartet serve agent")
		require.Contains(t, r.errs, "scheduler is down: ")
		require.NotContains(t, r.errs, "work is ")
		d := run(ctx, t, "doctor", "--address", addrs[2], "--nats-url", url, "--erase-after", "0",
			"--data-dir", filepath.Join(dir, "doctor"))
		require.Error(t, d.err)
		require.Contains(t, d.out, "agent is down: no process")
	}
	require.NoError(t, agents.Freeze())
	down()
	require.NoError(t, agents.Thaw())
	require.Eventually(t, func() bool { return readyz("/readyz?all") == http.StatusOK }, time.Minute,
		100*time.Millisecond)
	require.NoError(t, agents.Kill())
	down()
	require.NoError(t, agents.Start(ctx))
	require.Eventually(t, func() bool { return readyz("/readyz?all") == http.StatusOK }, time.Minute,
		100*time.Millisecond)
}

// TestR5_AServerThatDoesNotSyncIsRefused: a NATS server with the default of sync_interval would lose answered
// mutations.
func TestR5_AServerThatDoesNotSyncIsRefused(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	nats, url := natsProcess(t)
	monitor := must.Value(proc.FreeAddr())(t)
	conf := nats.Args[1]
	text := must.Value(os.ReadFile(conf))(t)
	for sync, ready := range map[string]bool{"": false, ", sync_interval: 2m": false, ", sync_interval: always": true} {
		require.NoError(t,
			os.WriteFile(conf, []byte("http: \""+monitor+"\"\n"+strings.Replace(string(text), ", sync_interval: always",
				sync, 1)), 0o600))
		require.NoError(t, nats.Start(ctx))
		srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), url, "--nats-monitor-url",
			"http://"+monitor))(t)
		err := srv.Start(ctx)
		if ready {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "set sync_interval: always in the block jetstream")
		}
		require.NoError(t, srv.Kill())
		require.NoError(t, nats.Kill())
	}
}
