package tests

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
)

// signed delivers a body to a trigger with the signature of its secret.
func signed(t *testing.T, url, secret, body string) answer {
	t.Helper()
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	req := must.Value(http.NewRequestWithContext(soon(t), http.MethodPost, url, bytes.NewBufferString(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(must.Value(io.ReadAll(resp.Body))(t))}
}

// TestI20_RotationOverCopies: two processes with copies of the key file, of the older format. A key
// is activated only when both know it, and retired only when none signs with it; credentials,
// triggers, sealed secrets and repeated requests survive the rotation.
func TestI20_RotationOverCopies(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin := binary(t)
	secret := strings.Repeat("0123456789abcdef", 4)
	planes, door := twoDoorsWith(t, func(cfg *app.Config) {
		cfg.KeyFile = filepath.Join(cfg.DataDir, "key")
		require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
		require.NoError(t, os.WriteFile(cfg.KeyFile, []byte(secret+"\n"), 0o600))
	})
	cli := func(args ...string) (string, error) {
		cmd := exec.CommandContext(soon(t), bin, append([]string{"installation-key"}, args...)...)
		cmd.Env = append(os.Environ(), "QUARTET_KEY_FILE="+planes.cfg.KeyFile, "QUARTET_ADDRESS="+planes.cfg.GRPCAddr)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	ring := func() keyfile.Ring {
		return must.Value(keyfile.Load(planes.cfg.KeyFile))(t)
	}
	copyFile := func() {
		require.NoError(t, os.WriteFile(door.cfg.KeyFile, must.Value(os.ReadFile(planes.cfg.KeyFile))(t), 0o600))
	}
	ok := func(a answer) answer {
		t.Helper()
		require.Equal(t, http.StatusOK, a.status, a.body)
		return a
	}

	// What is made before the rotation.
	create := &identityv1.CreateKeyRequest{Name: "op", Role: identityv1.Role_ROLE_OPERATOR, RequestId: "op-1"}
	_, operator := planes.key(t, create)
	_, runner := planes.key(t, &identityv1.CreateKeyRequest{Name: "run", Role: identityv1.Role_ROLE_RUNNER})
	ok(door.rest(t, operator, "POST", "/v1/agents", `{"preset":"public_named","agentId":"keeper"}`))
	ok(door.rest(t, operator, "POST", "/v1/agents/keeper/messages", `{"text":"hello"}`))
	turn := ok(door.rest(t, runner, "POST", "/v1/turns:acquire", `{"agentIds":["keeper"],"wait":"20s"}`))
	run := agentv1.NewAgentServiceClient(planes.conn(t, turn.field(t, "runToken")))
	read := func() error { return must.Err(run.GetAgent(soon(t), &agentv1.GetAgentRequest{AgentId: "keeper"})) }
	require.NoError(t, read())
	const own, make1, make2 = "the-outside-systems-own-secret", `{"signatureScheme":"hub_sha256","requestId":"t-1"}`,
		`{"signatureScheme":"hub_sha256","signingSecret":"the-outside-systems-own-secret","requestId":"t-2"}`
	generated := ok(door.rest(t, operator, "POST", "/v1/agents/keeper/triggers", make1))
	given := ok(door.rest(t, operator, "POST", "/v1/agents/keeper/triggers", make2))
	url := func(a answer) string { return "http://" + door.cfg.HTTPAddr + "/v1/triggers/" + a.field(t, "token") }
	deliver := func(body string) {
		t.Helper()
		ok(signed(t, url(generated), generated.field(t, "signingSecret"), body))
		ok(signed(t, url(given), own, body))
		require.Equal(t, http.StatusForbidden, signed(t, url(given), "another", body).status)
	}
	deliver(`{"n":1}`)
	old := ring().Active().ID

	out, err := cli("add")
	require.NoError(t, err, out)
	pending, found := ring().Pending()
	require.True(t, found)
	require.Contains(t, out, pending.ID)
	require.NotContains(t, out, hex.EncodeToString(pending.Secret))
	out, err = cli("activate", pending.ID)
	require.Error(t, err)
	require.Contains(t, out, "do not know key "+pending.ID)
	require.Contains(t, out, "(gateway)", "the process that lacks it is named")
	require.Equal(t, old, ring().Active().ID)

	copyFile()
	require.Eventually(t, func() bool { out, err = cli("activate", pending.ID); return err == nil }, eventually,
		100*time.Millisecond, "%s", &out)
	require.Equal(t, pending.ID, ring().Active().ID)
	out, err = cli("retire", old)
	require.Error(t, err)
	require.Contains(t, out, "sign with key "+old)
	out, err = cli("retire", pending.ID)
	require.Error(t, err)
	require.Contains(t, out, "is the active one")

	survives := func() {
		t.Helper()
		require.NoError(t, read())
		deliver(`{"n":2}`)
		_, again := planes.key(t, create)
		require.Equal(t, operator, again)
		for body, first := range map[string]answer{make1: generated, make2: given} {
			again := ok(door.rest(t, operator, "POST", "/v1/agents/keeper/triggers", body))
			require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
			require.Equal(t, first.field(t, "token"), again.field(t, "token"))
			require.Equal(t, first.field(t, "signingSecret"), again.field(t, "signingSecret"))
		}
	}
	survives() // while the two sign with different keys
	copyFile()
	signs := func(id string) func() bool {
		return func() bool {
			resp, err := planes.identity(t, bootstrap).ListProcesses(soon(t), &identityv1.ListProcessesRequest{})
			require.NoError(t, err)
			for _, p := range resp.GetProcesses() {
				if p.GetActiveInstallationKeyId() != id {
					return false
				}
			}
			return len(resp.GetProcesses()) == 2
		}
	}
	require.Eventually(t, signs(pending.ID), eventually, 100*time.Millisecond)
	survives()
	created := must.Value(planes.identity(t, bootstrap).CreateKey(soon(t), &identityv1.CreateKeyRequest{
		Name: "new", Role: identityv1.Role_ROLE_OPERATOR,
	}))(t)
	require.Equal(t, pending.ID, created.GetKey().GetInstallationKeyId())

	// A rotated trigger does not need the old key any more.
	id := given.field(t, "trigger", "triggerId")
	rotated := ok(door.rest(t, operator, "POST", "/v1/agents/keeper/triggers/"+id+":rotate", `{}`))
	out, err = cli("retire", old)
	require.NoError(t, err, out)
	copyFile()
	require.Eventually(t, func() bool { return read() != nil }, eventually, 50*time.Millisecond)
	require.ErrorIs(t, read(), fault.Unauthenticated, "what the retired key signed")
	ok(door.rest(t, operator, "GET", "/v1/agents/keeper", ""))
	ok(signed(t, url(rotated), own, `{"n":3}`))
	refused := signed(t, url(generated), generated.field(t, "signingSecret"), `{"n":3}`)
	require.Contains(t, refused.body, "INSTALLATION_KEY_RETIRED")
	must.Refuse(planes.identity(t, bootstrap).CreateKey(soon(t), create))(t, fault.InstallationKeyRetired)
}

// TestI20_RotateTheRealBinary: one command rotates where all processes have one file; it changes
// nothing while the servers cannot be asked, and a server that is killed continues with the keys.
func TestI20_RotateTheRealBinary(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin, data := binary(t), filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	srv := startServer(t, ctx, data)
	path := filepath.Join(data, "key")
	cli := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, bin, append(args, "--key-file", path, "--address", srv.GRPC)...).
			CombinedOutput()
		return string(out), err
	}
	ring := func() keyfile.Ring {
		return must.Value(keyfile.Load(path))(t)
	}
	first := ring()
	created, err := cli("key", "create", "root", "--role", "admin", "--bootstrap", "--request-id", "r1")
	require.NoError(t, err, created)
	out, err := cli("installation-key", "rotate")
	require.NoError(t, err, out)
	second := ring()
	require.Len(t, second.Keys(), 2)
	require.NotEqual(t, first.Active().ID, second.Active().ID)
	require.Contains(t, out, second.Active().ID)

	require.NoError(t, srv.Kill())
	out, err = cli("installation-key", "rotate")
	require.Error(t, err)
	require.Contains(t, out, "the key file was not changed")
	require.Equal(t, second, ring())
	require.NoError(t, srv.Start(ctx))
	again, err := cli("key", "create", "root", "--role", "admin", "--bootstrap", "--request-id", "r1")
	require.NoError(t, err, again)
	require.Equal(t, created, again)

	// A rotation that was interrupted is continued with the key that it added.
	out, err = cli("installation-key", "add")
	require.NoError(t, err, out)
	pending, _ := ring().Pending()
	out, err = cli("installation-key", "rotate")
	require.NoError(t, err, out)
	require.Equal(t, pending.ID, ring().Active().ID)
	require.Len(t, ring().Keys(), 3)
	out, err = cli("installation-key", "retire", first.Active().ID)
	require.NoError(t, err, out)
	require.Len(t, ring().Keys(), 2)
	for _, bad := range [][]string{{"activate", "00000000"}, {"retire", "00000000"}, {"retire", pending.ID}} {
		out, err = cli(append([]string{"installation-key"}, bad...)...)
		require.Error(t, err, out)
		require.Len(t, ring().Keys(), 2)
	}
	require.NoError(t, srv.Kill())
	out, err = cli("installation-key", "rotate", "--force")
	require.NoError(t, err, out)
	require.Len(t, ring().Keys(), 3)
}
