package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
	"quartet/tests/proc"
)

const operator = identityv1.Role_ROLE_OPERATOR

// TestX15_AKeyLetsInUntilItIsRevoked is a key's life over REST.
func TestX15_AKeyLetsInUntilItIsRevoked(t *testing.T) {
	h := newHouse(t, nil)
	require.Equal(t, http.StatusUnauthorized, h.rest(t, "", "GET", "/v1/agents", "").status)
	made := h.rest(t, bootstrap, "POST", "/v1/keys",
		`{"name":"ci","role":"operator","namespace":"acme","requestId":"r1"}`)
	require.Equal(t, http.StatusOK, made.status, made.body)
	secret, id := made.field(t, "secret"), made.field(t, "key", "keyId")
	require.Regexp(t, `^qk_[0-9a-hjkmnp-tv-z]{26}_[0-9a-f]{64}$`, secret)
	require.Equal(t, "bootstrap", strings.TrimPrefix(made.field(t, "key", "createdBy"), "default/"))

	again := h.rest(t, bootstrap, "POST", "/v1/keys",
		`{"name":"ci","role":"operator","namespace":"acme","requestId":"r1"}`)
	require.Equal(t, secret, again.field(t, "secret"), "a repeated request has its first answer (X2)")
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	require.Equal(t, http.StatusConflict, h.rest(t, bootstrap, "POST", "/v1/keys",
		`{"name":"other","role":"operator","namespace":"acme","requestId":"r1"}`).status)

	me := h.rest(t, secret, "GET", "/v1/whoami", "")
	require.Equal(t, []string{"acme", "ci", "ROLE_OPERATOR"},
		[]string{me.field(t, "namespace"), me.field(t, "principal"), me.field(t, "role")})
	spawned := h.rest(t, secret, "POST", "/v1/agents", `{"agentId":"keeper","preset":"public_named"}`)
	require.Equal(t, http.StatusOK, spawned.status, spawned.body)
	events := h.rest(t, secret, "GET", "/v1/events?from_start=true&stop_at_end=true", "")
	require.Contains(t, events.body, `"principal":"ci"`, "who acts stands on every event (X4)")
	require.NotContains(t, events.body, "key_created")
	require.Equal(t, http.StatusForbidden, h.rest(t, secret, "POST", "/v1/keys", `{"name":"x","role":"admin"}`).status)

	for _, path := range []string{"/v1/keys", "/v1/keys/" + id} {
		shown := h.rest(t, bootstrap, "GET", path, "")
		require.Contains(t, shown.body, id)
		require.NotContains(t, shown.body, secret[40:], "shown once")
		require.NotContains(t, strings.ToLower(shown.body), "hash")
	}
	for range 2 { // repeating it changes nothing
		gone := h.rest(t, bootstrap, "POST", "/v1/keys/"+id+":revoke", `{}`)
		require.Equal(t, "KEY_STATUS_REVOKED", gone.field(t, "key", "status"), gone.body)
	}
	require.Eventually(t, func() bool {
		return h.rest(t, secret, "GET", "/v1/agents", "").
			status == http.StatusUnauthorized
	}, time.Minute, 5*time.Millisecond)
	require.Contains(t, h.rest(t, secret, "GET", "/v1/agents", "").body, id+" was revoked",
		"whoever has the secret may know")
	require.NotContains(t, h.rest(t, bootstrap, "GET", "/v1/keys", "").body, id)
	require.Contains(t, h.rest(t, bootstrap, "GET", "/v1/keys?include_ended=true", "").body, id)
	require.Equal(t, http.StatusNotFound, h.rest(t, bootstrap, "POST", "/v1/keys/key_00000000000000000000000000:revoke",
		`{}`).status)
}

// TestX15_WhatIsRefusedOfAKey: bad requests change nothing.
func TestX15_WhatIsRefusedOfAKey(t *testing.T) {
	h := newHouse(t, nil)
	for body, says := range map[string]string{
		`{"role":"operator"}`:                                           "name",
		`{"name":"x"}`:                                                  "role",
		`{"name":"x","role":"king"}`:                                    "role",
		`{"name":"x","role":"service"}`:                                 "installation's key",
		`{"name":"X y","role":"operator"}`:                              "name",
		`{"name":"x","role":"operator","namespace":"a.b"}`:              "namespace",
		`{"name":"x","role":"operator","namespace":"a>"}`:               "namespace",
		`{"name":"x","role":"operator","namespace":"*"}`:                "namespace",
		`{"name":"x","role":"operator","namespace":"a\u0000"}`:          "namespace",
		`{"name":"x","role":"agent"}`:                                   "agent_id",
		`{"name":"x","role":"operator","agentId":"keeper"}`:             "agent_id",
		`{"name":"x","role":"operator","expiresAfter":"0.9s"}`:          "expires_after",
		`{"name":"x","role":"operator","expiresAfter":"-1s"}`:           "expires_after",
		`{"name":"x","role":"operator","expiresAfter":"315360001s"}`:    "expires_after",
		`{"name":"x","role":"operator","secret":"qk_mine"}`:             "secret",
		`{"name":"` + strings.Repeat("x", 129) + `","role":"operator"}`: "name",
	} {
		a := h.rest(t, bootstrap, "POST", "/v1/keys", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", body, a.body)
		require.Contains(t, a.body, says, body)
	}
	for _, body := range []string{`{"name":"x","role":"operator","expiresAfter":"1s"}`, `{"name":"` +
		strings.Repeat("x", 128) + `","role":"operator","expiresAfter":"315360000s"}`} {
		require.Equal(t, http.StatusOK, h.rest(t, bootstrap, "POST", "/v1/keys", body).status, body)
	}
	require.Equal(t, 2, strings.Count(h.rest(t, bootstrap, "GET", "/v1/keys?include_ended=true", "").body, `"keyId"`))
}

// TestX15_TheSecretIsNowhereOnDisk looks into every file of the installation.
func TestX15_TheSecretIsNowhereOnDisk(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.Publish = true })
	id, secret := h.key(t, &identityv1.CreateKeyRequest{Name: "ci", Role: operator, Namespace: "acme"})
	require.Equal(t, http.StatusOK, h.rest(t, secret, "POST", "/v1/agents",
		`{"agentId":"keeper","preset":"public_named"}`).status)
	files, found := 0, false
	require.NoError(t, filepath.WalkDir(h.cfg.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		found = found || bytes.Contains(b, []byte(id))
		if bytes.Contains(b, []byte(secret[len(secret)-64:])) {
			t.Errorf("%s has the secret", path)
		}
		return err
	}))
	require.True(t, found, "the key itself is in one of %d files", files)
}

// TestX15_RevocationEndsStreams: what a key opened ends with it, over gRPC and
// over HTTP, on the process that revoked it and on another one.
func TestX15_RevocationEndsStreams(t *testing.T) {
	planes, door := twoDoors(t)
	id, secret := planes.key(t, &identityv1.CreateKeyRequest{Name: "ci", Role: operator, Namespace: "acme"})
	runnerID, runner := planes.key(t, &identityv1.CreateKeyRequest{
		Name: "r", Role: identityv1.Role_ROLE_RUNNER, Namespace: "acme",
	})
	ctx := soon(t)

	// gRPC at the gateway's process, whose own service this is.
	watch, err := eventv1.NewEventServiceClient(door.conn(t, secret)).WatchEvents(ctx, &eventv1.WatchEventsRequest{})
	require.NoError(t, err)
	_, err = watch.Recv() // where it stands
	require.NoError(t, err)

	// HTTP at the same.
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+door.cfg.HTTPAddr+"/v1/events", nil))(t)
	req.Header.Set("Authorization", "Bearer "+secret)
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	require.True(t, lines.Scan())

	// A long poll at the planes' process.
	polled := make(chan error, 1)
	turns := agentv1.NewAgentServiceClient(planes.conn(t, runner))
	go func() {
		_, err := turns.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{Wait: durationpb.New(50 * time.Second)})
		polled <- err
	}()

	for _, k := range []string{id, runnerID} {
		must.Value(planes.identity(t, bootstrap).RevokeKey(ctx, &identityv1.RevokeKeyRequest{KeyId: k}))(t)
	}
	for err == nil { // a heartbeat may be on its way
		_, err = watch.Recv()
	}
	require.ErrorIs(t, err, fault.Unauthenticated)
	require.Contains(t, err.Error(), id+" was revoked")
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	require.Contains(t, last, "UNAUTHENTICATED")
	select {
	case err := <-polled:
		// It may have come after the revocation, or been ended by it; either way
		// it got no turn.
		require.ErrorIs(t, err, fault.Unauthenticated)
	case <-ctx.Done():
		t.Fatal("the long poll went on")
	}
}

// TestX15_AKeyIsKnownEverywhereAtOnce: whoever was just given a key uses it at
// any process.
func TestX15_AKeyIsKnownEverywhereAtOnce(t *testing.T) {
	proc.Long(t)
	planes, door := twoDoors(t)
	for i := range 20 {
		_, secret := planes.key(t, &identityv1.CreateKeyRequest{
			Name: fmt.Sprintf("k%d", i), Role: operator, Namespace: "acme",
		})
		a := door.rest(t, secret, "GET", "/v1/whoami", "")
		require.Equal(t, http.StatusOK, a.status, a.body)
	}
}

// TestX15_AKeyEndsByItself: calls and streams end with its time.
func TestX15_AKeyEndsByItself(t *testing.T) {
	proc.Long(t)
	h := newHouse(t, nil)
	id, secret := h.key(t, &identityv1.CreateKeyRequest{
		Name: "ci", Role: operator, ExpiresAfter: durationpb.New(2 * time.Second),
	})
	ctx := soon(t)
	watch, err := eventv1.NewEventServiceClient(h.conn(t, secret)).WatchEvents(ctx, &eventv1.WatchEventsRequest{})
	require.NoError(t, err)
	for err == nil {
		_, err = watch.Recv()
	}
	require.ErrorIs(t, err, fault.Unauthenticated)
	a := h.rest(t, secret, "GET", "/v1/whoami", "")
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Contains(t, a.body, id+" is past its expiry")
	got := must.Value(h.identity(t, bootstrap).GetKey(ctx, &identityv1.GetKeyRequest{KeyId: id}))(t)
	require.Equal(t, identityv1.KeyStatus_KEY_STATUS_EXPIRED, got.GetKey().GetStatus())
}

// TestX15_KeysOutliveTheServer and the bootstrap token does not have to.
func TestX15_KeysOutliveTheServer(t *testing.T) {
	h := newHouse(t, nil)
	_, kept := h.key(t, &identityv1.CreateKeyRequest{Name: "kept", Role: identityv1.Role_ROLE_ADMIN})
	goneID, gone := h.key(t, &identityv1.CreateKeyRequest{Name: "gone", Role: operator})
	must.Value(h.identity(t, bootstrap).RevokeKey(soon(t), &identityv1.RevokeKeyRequest{KeyId: goneID}))(t)
	stop(t, h)
	h.cfg.BootstrapToken = ""
	again := &house{cfg: h.cfg, app: startApp(t, h.cfg)}
	require.Equal(t, http.StatusOK, again.rest(t, kept, "GET", "/v1/keys", "").status)
	require.Equal(t, http.StatusUnauthorized, again.rest(t, gone, "GET", "/v1/agents", "").status)
	require.Equal(t, http.StatusUnauthorized, again.rest(t, bootstrap, "GET", "/v1/agents", "").status)
}

// TestX15_NotOpenToOtherMachines: what may be listened to without credentials.
func TestX15_NotOpenToOtherMachines(t *testing.T) {
	for name, c := range map[string]struct {
		auth, grpc, http string
		want             string
		err              string
	}{
		"loopback, by itself":     {"", "127.0.0.1:0", "[::1]:0", app.AuthLocal, ""},
		"loopback, without":       {app.AuthOff, "127.0.0.1:0", "[::1]:0", app.AuthOff, ""},
		"elsewhere, by itself":    {app.AuthAuto, "0.0.0.0:0", "127.0.0.1:0", app.AuthRequired, ""},
		"a name, by itself":       {app.AuthAuto, "127.0.0.1:0", "quartet.example.com:80", app.AuthRequired, ""},
		"loopback, with":          {app.AuthRequired, "127.0.0.1:0", "localhost:0", app.AuthRequired, ""},
		"elsewhere, without":      {app.AuthOff, "127.0.0.1:0", ":80", "", "reachable from other machines"},
		"gRPC elsewhere, without": {app.AuthOff, "10.0.0.1:80", "127.0.0.1:0", "", "grpc-addr"},
		"no such way":             {"sometimes", "127.0.0.1:0", "127.0.0.1:0", "", "auth is"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := app.Config{DataDir: t.TempDir(), GRPCAddr: c.grpc, HTTPAddr: c.http, Auth: c.auth}
			err := cfg.Complete()
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, cfg.Auth)
		})
	}
	cfg := app.Config{DataDir: t.TempDir(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", BootstrapToken: "short"}
	must.Fail(app.New(cfg, nil, "test"))(t, "at least 32 characters")
}

// TestX15_TheFirstKey is made on the server's machine, with the real binary, by
// whoever can read the installation's key file.
func TestX15_TheFirstKey(t *testing.T) {
	bin, dir := binary(t), t.TempDir()
	q := must.Value(proc.NewQuartet(bin, dir, "", "--auth", "required"))(t)
	ctx := soon(t)
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })
	run := func(args ...string) (string, string, error) {
		cmd := exec.CommandContext(ctx, bin, append(args, "--address", q.GRPC)...)
		cmd.Env = append(os.Environ(), "QUARTET_DATA_DIR="+dir)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return strings.TrimSpace(out.String()), errs.String(), err
	}
	_, errs, err := run("agent", "list")
	require.Error(t, err)
	require.Contains(t, errs, "UNAUTHENTICATED")
	secret, errs, err := run("key", "create", "root", "--role", "installation_admin", "--bootstrap")
	require.NoError(t, err, errs)
	require.Regexp(t, `^qk_`, secret)
	out, errs, err := run("whoami", "--token", secret)
	require.NoError(t, err, errs)
	require.Equal(t, "root, installation_admin of namespace default", out)
	out, errs, err = run("key", "list", "--token", secret)
	require.NoError(t, err, errs)
	require.Contains(t, out, "root")
	_, errs, err = run("key", "revoke", secret, "--token", secret)
	require.NoError(t, err, errs)
	_, errs, err = run("key", "list", "--token", secret)
	require.Error(t, err)
	require.Contains(t, errs, "was revoked")
	_, errs, err = run("key", "list", "--bootstrap", "--key-file", filepath.Join(dir, "nothing"))
	require.Error(t, err)
	require.Contains(t, errs, "give --key-file")
}
