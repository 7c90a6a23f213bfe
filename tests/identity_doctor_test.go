package tests

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/app"
	"quartet/tests/proc"
)

// TestX15_TheDoctor says what is wrong, with the real binary, and nothing of what
// is right.
func TestX15_TheDoctor(t *testing.T) {
	proc.Long(t)
	h := newHouse(t, nil)
	ca := newAuthority(t, "ours")
	certFile, keyFile, _ := ca.issue(t, "server")
	secured := newHouse(t, func(cfg *app.Config) { cfg.TLS.Cert, cfg.TLS.Key = certFile, keyFile })
	taken := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = taken.Close() })
	free := func() string {
		return must.Value(proc.FreeAddr())(t)
	}
	bin, nowhere := binary(t), filepath.Join(t.TempDir(), "data")
	at := []string{
		"--data-dir", h.cfg.DataDir, "--grpc-addr", h.cfg.GRPCAddr, "--http-addr", h.cfg.HTTPAddr,
		"--address", h.cfg.GRPCAddr,
	}
	elsewhere := []string{
		"--data-dir", nowhere, "--grpc-addr", free(), "--http-addr", free(), "--address",
		h.cfg.GRPCAddr, "--token", bootstrap,
	}
	with := func(base []string, more ...string) []string { return append(append([]string{}, base...), more...) }
	require.NoError(t, os.Chmod(filepath.Join(secured.cfg.DataDir, "key"), 0o644))
	for name, c := range map[string]struct {
		args     []string
		problems []string
	}{
		"all is well":        {with(at, "--token", bootstrap), nil},
		"nothing listens":    {with(elsewhere, "--address", free()), []string{"connection"}},
		"no credential":      {at, []string{"credential"}},
		"a wrong credential": {with(at, "--token", "qk_wrong"), []string{"credential"}},
		"REST is not gRPC":   {with(elsewhere, "--address", h.cfg.HTTPAddr), []string{"connection"}},
		"TLS to plain text":  {with(elsewhere, "--tls"), []string{"connection"}},
		"plain text to TLS":  {with(elsewhere, "--address", secured.cfg.GRPCAddr), []string{"connection"}},
		"an unknown authority": {
			with(elsewhere, "--address", secured.cfg.GRPCAddr, "--tls"),
			[]string{"connection"},
		},
		"TLS as it should be": {with(elsewhere, "--address", secured.cfg.GRPCAddr, "--tls-ca-file", ca.file), nil},
		"NATS is away":        {with(elsewhere, "--erase-after", "0", "--nats-url", "nats://user:secret@"+free()), []string{"nats"}},
		"nothing archives": {
			with(elsewhere, "--nats-url", "nats://user:secret@"+free()), []string{"settings"},
		},
		"a port is taken": {
			with(elsewhere, "--address", free(), "--http-addr", taken.Addr().String()),
			[]string{"connection", "http-addr"},
		},
		"settings do not go": {with(elsewhere, "--auth", "sometimes"), []string{"settings"}},
		"everybody reads the key": {
			with(elsewhere, "--key-file", filepath.Join(secured.cfg.DataDir, "key")),
			[]string{"key-file"},
		},
		"the provider is away": {with(elsewhere, "--oidc-issuer", "http://"+free(), "--oidc-audience", "q",
			"--oidc-namespace", "n", "--oidc-role-claim", "r", "--oidc-roles", "a=admin"), []string{"oidc-issuer"}},
		"a secret that is not there": {
			with(elsewhere, "--oidc-issuer", "http://"+free(), "--oidc-audience", "q",
				"--oidc-namespace", "n", "--oidc-role-claim", "r", "--oidc-roles", "a=admin",
				"--oidc-client-id", "quartet", "--oidc-client-secret-file",
				filepath.Join(filepath.Dir(nowhere), "secret")),
			[]string{"oidc-issuer", "sign-in"},
		},
		"a directory that is a file": {with(elsewhere, "--data-dir", ca.file), []string{"data-dir", "key-file"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(soon(t), bin, append([]string{"doctor", "-o", "json"}, c.args...)...)
			out, err := cmd.Output()
			require.Equal(t, len(c.problems) > 0, err != nil, "%v: %s", err, out)
			if err != nil {
				require.Equal(t, 1, cmd.ProcessState.ExitCode())
			}
			var said struct {
				OK       bool
				Problems int
				Findings []struct{ Check, Status, Message, Mend string }
			}
			require.NoError(t, json.Unmarshal(out, &said), string(out))
			var problems []string
			for _, f := range said.Findings {
				if f.Status == "problem" {
					problems = append(problems, f.Check)
				}
				if f.Status == "problem" || f.Status == "warning" {
					require.NotEmpty(t, f.Mend, f)
				}
			}
			require.Equal(t, c.problems, problems, string(out))
			require.Equal(t, len(problems), said.Problems)
			require.Equal(t, len(problems) == 0, said.OK)
			require.NotContains(t, string(out), "secret@")
		})
	}
	must.Refuse(os.Stat(nowhere))(t, os.ErrNotExist, "the doctor changes nothing")
}
