package tests

import (
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/tests/proc"
)

// machine is a user's home on a machine with others, and the user's server.
type machine struct {
	t   *testing.T
	bin string
	dir string // of token files
	srv *proc.Quartet
}

// newMachine starts a server as `quartet dev` does.
func newMachine(t *testing.T, settings ...string) *machine {
	m := &machine{t: t, bin: binary(t)} // which needs the real home
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	m.dir = filepath.Join(home, ".local", "state", "quartet")
	m.srv = m.server(settings...)
	return m
}

// server starts a further server of the user.
func (m *machine) server(settings ...string) *proc.Quartet {
	m.t.Helper()
	srv := must.Value(proc.NewQuartet(m.bin, filepath.Join(m.t.TempDir(), "data"), "", settings...))(m.t)
	require.NoError(m.t, srv.Start(soon(m.t)))
	m.t.Cleanup(func() { _ = srv.Kill() })
	return srv
}

// rest sends a request with exactly these headers (name, value, …) and returns status and body.
func (m *machine) rest(srv *proc.Quartet, method, path, body string, header ...string) (int, string) {
	m.t.Helper()
	req, err := http.NewRequestWithContext(soon(m.t), method, "http://"+srv.HTTP+path, strings.NewReader(body))
	require.NoError(m.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must.Value(http.DefaultClient.Do(req))(m.t)
	defer func() { require.NoError(m.t, resp.Body.Close()) }()
	return resp.StatusCode, string(must.Value(io.ReadAll(resp.Body))(m.t))
}

// whoAmI calls the server over gRPC with exactly this token, "" for none.
func (m *machine) whoAmI(srv *proc.Quartet, token string) (*identityv1.WhoAmIResponse, error) {
	m.t.Helper()
	conn := must.Value(grpc.NewClient(srv.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())))(m.t)
	defer func() { require.NoError(m.t, conn.Close()) }()
	ctx := soon(m.t)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return identityv1.NewIdentityServiceClient(conn).WhoAmI(ctx, &identityv1.WhoAmIRequest{})
}

// token returns the token in the file of an address.
func (m *machine) token(addr string) string {
	m.t.Helper()
	raw := must.Value(os.ReadFile(filepath.Join(m.dir, addr)))(m.t)
	match := regexp.MustCompile(`^Authorization: Bearer (qlt_[\w-]{43})\n$`).FindStringSubmatch(string(raw))
	require.Len(m.t, match, 2, "%s", raw)
	return match[1]
}

// quartet runs the command line with further variables.
func (m *machine) quartet(variables []string, args ...string) (string, error) {
	cmd := exec.CommandContext(soon(m.t), m.bin, args...)
	cmd.Env = append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// mcpHeader are the headers of MCP over HTTP.
func mcpHeader(more ...string) []string {
	return append([]string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"},
		more...)
}

// TestI1_DevDemandsItsToken attacks a server as another user of the machine, and uses it as its own.
func TestI1_DevDemandsItsToken(t *testing.T) {
	m := newMachine(t)
	for _, addr := range []string{m.srv.HTTP, m.srv.GRPC} {
		require.Equal(t, fs.FileMode(0o600), must.Value(os.Lstat(filepath.Join(m.dir, addr)))(t).Mode())
	}
	require.Equal(t, fs.ModeDir|0o700, must.Value(os.Lstat(m.dir))(t).Mode())
	token := m.token(m.srv.HTTP)
	require.Equal(t, token, m.token(m.srv.GRPC))

	for _, guess := range []string{
		"", "qlt_", "qlt_" + strings.Repeat("A", 43), token[:len(token)-1], token + "A",
		strings.ToUpper(token), "local",
	} {
		header := []string{}
		if guess != "" {
			header = []string{"Authorization", "Bearer " + guess}
		}
		code, body := m.rest(m.srv, "POST", "/v1/agents", `{"agent_id":"stolen","preset":"PRESET_PUBLIC_NAMED"}`,
			header...)
		require.Equal(t, 401, code, "%s: %s", guess, body)
		code, body = m.rest(m.srv, "GET", "/v1/events?from_start=true&stop_at_end=true", "", header...)
		require.Equal(t, 401, code, "%s: %s", guess, body)
		code, body = m.rest(m.srv, "POST", "/mcp/stolen?create=true", listTools, mcpHeader(header...)...)
		require.Equal(t, 401, code, "%s: %s", guess, body)
		_, err := m.whoAmI(m.srv, guess)
		require.Equal(t, codes.Unauthenticated, status.Code(err), guess)
	}
	_, body := m.rest(m.srv, "GET", "/v1/agents", "")
	require.Contains(t, body, "curl sends it with -H @FILE")
	require.NotContains(t, body, m.dir)
	other := t.TempDir() // the home of another user
	out, err := m.quartet([]string{"HOME=" + other}, "--address", m.srv.GRPC, "agent", "list")
	require.Error(t, err)
	require.Contains(t, out, "UNAUTHENTICATED")

	// Nothing was created, and the token is that of the admin.
	bearer := []string{"Authorization", "Bearer " + token}
	code, body := m.rest(m.srv, "GET", "/v1/agents", "", bearer...)
	require.Equal(t, 200, code, body)
	require.NotContains(t, body, "stolen")
	me := must.Value(m.whoAmI(m.srv, token))(t)
	require.Equal(t, []any{"local", "default", identityv1.Role_ROLE_INSTALLATION_ADMIN},
		[]any{me.GetPrincipal(), me.GetNamespace(), me.GetRole()})
	code, body = m.rest(m.srv, "POST", "/mcp/keeper?create=true", listTools, mcpHeader(bearer...)...)
	require.Equal(t, 200, code, body)
	for _, address := range []string{m.srv.GRPC, strings.Replace(m.srv.GRPC, "127.0.0.1", "localhost", 1)} {
		out, err = m.quartet(nil, "--address", address, "whoami")
		require.NoError(t, err, out)
		require.Contains(t, out, "local, installation_admin of namespace default")
	}

	// Probes and pages need no credential; nor does a delivery, whose address is one.
	for _, path := range []string{"/healthz", "/readyz", "/version", "/metrics", "/openapi.json", "/"} {
		code, _ := m.rest(m.srv, "GET", path, "")
		require.Equal(t, 200, code, path)
	}
	code, body = m.rest(m.srv, "POST", "/v1/agents/keeper/triggers", `{"description":"CI"}`, bearer...)
	require.Equal(t, 200, code, body)
	path := regexp.MustCompile(`/v1/triggers/qtr_[\w-]+`).FindString(body)
	require.NotEmpty(t, path, body)
	code, body = m.rest(m.srv, "POST", path, `{}`)
	require.Equal(t, 200, code, body)

	// The token is in no log, and what others could read or write is not used.
	log := must.Value(os.ReadFile(m.srv.Log))(t)
	require.NotContains(t, string(log), token)
	require.Contains(t, string(log), "curl -H @"+filepath.Join(m.dir, m.srv.HTTP))
	require.NoError(t, os.Chmod(filepath.Join(m.dir, m.srv.GRPC), 0o644))
	out, err = m.quartet(nil, "--address", m.srv.GRPC, "whoami")
	require.Error(t, err)
	require.Contains(t, out, "is open to other users (mode 0644)")
	require.NoError(t, os.Chmod(filepath.Join(m.dir, m.srv.GRPC), 0o600))
	require.NoError(t, m.srv.Interrupt(soon(t)))
	require.Empty(t, must.Value(os.ReadDir(m.dir))(t), "an orderly stop removes the files")
}

// thief is a server that another user started at an address that was free, and notes what it gets.
func thief(t *testing.T, addr string) (got chan metadata.MD) {
	lis := must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", addr))(t)
	got = make(chan metadata.MD, 16)
	srv := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		got <- md
		return status.Error(codes.PermissionDenied, "thank you")
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(lis) // until Stop
	}()
	t.Cleanup(func() { srv.Stop(); <-done })
	return got
}

// TestI1_TheTokenIsSentToItsServerOnly: a killed server leaves its file, and another program may listen at its
// address; the next server of the data directory has the same token.
func TestI1_TheTokenIsSentToItsServerOnly(t *testing.T) {
	m := newMachine(t)
	token := m.token(m.srv.GRPC)
	require.NoError(t, m.srv.Kill())
	require.FileExists(t, filepath.Join(m.dir, m.srv.GRPC))
	t.Run("stolen address", func(t *testing.T) {
		got := thief(t, m.srv.GRPC)
		out, err := m.quartet(nil, "--address", m.srv.GRPC, "whoami")
		require.Error(t, err)
		require.Contains(t, out, "thank you")
		require.Empty(t, (<-got).Get("authorization"))
	})
	require.NoError(t, m.srv.Start(soon(t)))
	require.Equal(t, token, m.token(m.srv.GRPC), "a restart does not end it")
	must.Value(m.whoAmI(m.srv, token))(t)

	// Another address, and another data directory.
	second := m.server()
	require.NotEqual(t, token, m.token(second.GRPC))
	_, err := m.whoAmI(second, token)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	code, body := m.rest(second, "GET", "/v1/agents", "", "Authorization", "Bearer "+token)
	require.Equal(t, 401, code, body)
	for _, srv := range []*proc.Quartet{m.srv, second} {
		out, err := m.quartet(nil, "--address", srv.GRPC, "whoami")
		require.NoError(t, err, out)
	}

	// A server that demands keys takes the token of none, also over the same data.
	require.NoError(t, second.Kill())
	second.Args = append(second.Args, "--auth", "required")
	stolen := m.token(second.GRPC)
	require.NoError(t, second.Start(soon(t)))
	_, err = m.whoAmI(second, stolen)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	out, err := m.quartet(nil, "--address", second.GRPC, "whoami")
	require.Error(t, err)
	require.Contains(t, out, "no credential")
}

// TestI1_OpenIsAsItWas: everybody who can connect is the admin, and no token is written. Pages are
// refused nonetheless, whatever they can send without a preflight request.
func TestI1_OpenIsAsItWas(t *testing.T) {
	m := newMachine(t, "--open")
	require.NoDirExists(t, m.dir)
	require.Equal(t, identityv1.Role_ROLE_INSTALLATION_ADMIN, must.Value(m.whoAmI(m.srv, ""))(t).GetRole())
	_, err := m.whoAmI(m.srv, "qlt_"+strings.Repeat("A", 43))
	require.Equal(t, codes.Unauthenticated, status.Code(err), "a wrong credential is not an absent one")
	code, body := m.rest(m.srv, "POST", "/v1/agents", `{"agent_id":"keeper","preset":"PRESET_PUBLIC_NAMED"}`)
	require.Equal(t, 200, code, body)
	command := `{"command":{"cmd":"echo ran > ran"},"yieldTime":"20s"}`
	const tasks = "/v1/agents/keeper/tasks:exec"
	for origin, want := range map[string]int{
		"http://localhost:3000": 403, "http://evil.example": 403, "null": 403,
		"https://" + m.srv.HTTP: 403,
	} {
		for _, content := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json"} {
			code, body := m.rest(m.srv, "POST", tasks, command, "Origin", origin, "Content-Type", content,
				"Sec-Fetch-Site", "same-site")
			require.Equal(t, want, code, "%s %s: %s", origin, content, body)
			code, body = m.rest(m.srv, "POST", "/mcp/keeper", listTools, mcpHeader("Origin", origin)...)
			require.Equal(t, want, code, body)
		}
	}
	code, body = m.rest(m.srv, "POST", tasks, command, "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, 403, code, body)
	code, body = m.rest(m.srv, "GET", "/v1/agents/keeper/tasks", "")
	require.Equal(t, 200, code, body)
	require.NotContains(t, body, "echo ran", "no command was started")
	code, body = m.rest(m.srv, "POST", tasks, command, "Origin", "http://"+m.srv.HTTP, "Sec-Fetch-Site", "same-origin")
	require.Equal(t, 200, code, body)
}

// TestI1_TheFirstCurlOfTheReadme runs the first request that README.md shows, as it is but for the port.
func TestI1_TheFirstCurlOfTheReadme(t *testing.T) {
	raw := must.Value(os.ReadFile("../README.md"))(t)
	line := regexp.MustCompile(`(?m)^curl .*-H @.*$`).FindString(string(raw))
	require.NotEmpty(t, line)
	require.GreaterOrEqual(t, strings.Count(line, "127.0.0.1:7480"), 2, "the file and the address: %s", line)
	m := newMachine(t)
	out, err := m.quartet(nil, "--address", m.srv.GRPC, "agent", "spawn", "keeper")
	require.NoError(t, err, out)
	cmd := exec.CommandContext(soon(t), "bash", "-c", strings.ReplaceAll(line, "127.0.0.1:7480", m.srv.HTTP))
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), `"workItemId"`, line)
}

// TestT10_CommandsOnLoopbackHaveNoToken gives commands the network of the host and a root in which the token files are:
// they reach the server and not its token.
func TestT10_CommandsOnLoopbackHaveNoToken(t *testing.T) {
	binary(t) // which needs the real home
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	require.NoError(t, os.WriteFile(filepath.Join(home, "notes"), []byte("readable"), 0o600))
	s := newWorkshop(t, "--worker-pools", "default", "--worker-network", "all", "--worker-roots", home)
	token := must.Value(localtoken.Read(s.srv.HTTP))(t)
	require.NotEmpty(t, token)
	dir := localtoken.Dir()
	for _, c := range []struct{ command, want string }{
		{"cat " + home + "/notes", "readable"},
		{"cat " + dir + "/*; ls -la " + dir + "; find " + home + " -type f -exec cat {} +", ""},
		{"ln -s " + dir + " t; cat t/*; cp -r " + dir + " stolen; cat stolen/*", ""},
		{"mv " + home + "/.local " + home + "/moved; cat " + home + "/moved/state/quartet/*", ""},
		{"grep -r qlt_ " + home + " /tmp /proc/[0-9]*/environ", ""},
		{"exec 3<>/dev/tcp/" + strings.ReplaceAll(s.srv.HTTP, ":", "/") +
			"; printf 'GET /v1/agents HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3", "UNAUTHENTICATED"},
		{
			"exec 3<>/dev/tcp/" + strings.ReplaceAll(s.srv.HTTP, ":", "/") +
				"; printf 'POST /mcp/keeper HTTP/1.0\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\n\\r\\n' " +
				">&3; cat <&3",
			"UNAUTHENTICATED",
		},
	} {
		task := s.exec(0, &taskv1.CommandSpec{Argv: []string{"bash", "-c", c.command}})
		s.eventually(func() bool {
			got, err := s.tasks.GetTask(s.ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: task.GetTaskId()})
			if err == nil {
				task = got.GetTask()
			}
			return task.GetEndedAt() != nil
		}, "%s", c.command)
		out := s.outputOf(task)
		require.Contains(t, out, c.want, c.command)
		require.NotContains(t, out, token, c.command)
	}
	require.Equal(t, token, must.Value(localtoken.Read(s.srv.HTTP))(t), "the file is where it was")
}
