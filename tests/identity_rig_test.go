package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
	"quartet/tests/dev"
)

// bootstrap is the token of servers whose first admin it is.
const bootstrap = "a-bootstrap-token-of-more-than-32-characters"

// house is a server that lets nobody in without a credential.
type house struct {
	cfg app.Config
	app *app.App
}

// newHouse starts one; change may be nil.
func newHouse(t *testing.T, change func(cfg *app.Config)) *house {
	cfg := must.Value(dev.Config(t.TempDir()))(t)
	cfg.Auth, cfg.BootstrapToken = app.AuthRequired, bootstrap
	if change != nil {
		change(&cfg)
	}
	return &house{cfg: cfg, app: startApp(t, cfg)}
}

// twoDoors is one installation with two processes that callers may come to: the
// planes in one, and a gateway in the other.
func twoDoors(t *testing.T) (planes, door *house) { return twoDoorsWith(t, func(*app.Config) {}) }

func twoDoorsWith(t *testing.T, change func(cfg *app.Config)) (planes, door *house) {
	dir := t.TempDir()
	broker := must.Value(natsd.Start(natsd.Config{StoreDir: filepath.Join(dir, "nats"), Port: 0}))(t)
	t.Cleanup(broker.Stop)
	shared := t.TempDir()
	config := func(name string) app.Config {
		cfg := must.Value(dev.Config(filepath.Join(dir, name)))(t)
		cfg.Auth, cfg.NATSURL, cfg.KeyFile = app.AuthRequired, broker.URL(), filepath.Join(dir, "key")
		cfg.WorkerRoots, cfg.Archive.URL = []string{dir}, shared
		change(&cfg)
		return cfg
	}
	first, second := config("planes"), config("door")
	first.BootstrapToken = bootstrap
	first.Serve = []string{"agent", "work", "task", "waiting", "board", "identity", "scheduler"}
	second.Serve = []string{"gateway"}
	second.Addresses = map[string]string{}
	for _, s := range first.Serve {
		second.Addresses[s] = first.GRPCAddr
	}
	return &house{cfg: first, app: startApp(t, first)}, &house{cfg: second, app: startApp(t, second)}
}

const (
	eventually = time.Minute
	tick       = 5 * time.Millisecond
)

// stop ends a server in order.
func stop(t *testing.T, h *house) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.NoError(t, h.app.Stop(ctx))
}

// conn returns a connection that shows token.
func (h *house) conn(t *testing.T, token string, opts ...client.Option) *grpc.ClientConn {
	conn := must.Value(client.Connect(h.cfg.GRPCAddr, append(opts, client.WithToken(token))...))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (h *house) identity(t *testing.T, token string) identityv1.IdentityServiceClient {
	return identityv1.NewIdentityServiceClient(h.conn(t, token))
}

// key creates a key as the bootstrap admin and returns its id and secret.
func (h *house) key(t *testing.T, req *identityv1.CreateKeyRequest) (id, secret string) {
	t.Helper()
	resp := must.Value(h.identity(t, bootstrap).CreateKey(soon(t), req))(t)
	return resp.GetKey().GetKeyId(), resp.GetSecret()
}

// minted returns a credential that a service of this installation could mint.
func (h *house) minted(t *testing.T, a rpc.Actor) string {
	path := h.cfg.KeyFile
	if path == "" {
		path = filepath.Join(h.cfg.DataDir, "key")
	}
	return rpc.KeyringOf(keyfile.Fixed(must.Value(keyfile.Load(path))(t)), false).Mint(a)
}

// answer is what REST said.
type answer struct {
	status int
	header http.Header
	body   string
}

// field returns a value of the answer's JSON.
func (a answer) field(t *testing.T, path ...string) string {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal([]byte(a.body), &v), a.body)
	for _, p := range path {
		m, ok := v.(map[string]any)
		require.True(t, ok, a.body)
		v = m[p]
	}
	s, _ := v.(string)
	return s
}

// rest calls the gateway with a token, "" for none.
func (h *house) rest(t *testing.T, token, method, path, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(soon(t), method, "http://"+h.cfg.HTTPAddr+path, bytes.NewBufferString(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(path, "/mcp/") {
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(must.Value(io.ReadAll(resp.Body))(t))}
}

// soon returns a context that ends a test which would hang.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
