package tests

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	issuer "quartet/pkg/authority"
	"quartet/pkg/certs"
	"quartet/pkg/client"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/app"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// natsCluster is three NATS servers with the configuration of the deployment,
// deploy/nats/nats.conf, on loopback.
type natsCluster struct {
	dir     string // of the authority
	url     string
	servers []*proc.Process
	routes  []string
}

func (c *natsCluster) files(name string) certs.Files {
	at := filepath.Join(c.dir, name)
	return certs.Files{
		CA: filepath.Join(c.dir, "ca.pem"), Cert: filepath.Join(at, "tls.pem"), Key: filepath.Join(at, "tls.key"),
	}
}

func (c *natsCluster) remote(name string) natsd.Remote {
	return natsd.Remote{URL: c.url, TLS: c.files(name), ServerName: "nats"}
}

func newNATSCluster(t *testing.T) *natsCluster {
	c := &natsCluster{dir: t.TempDir()}
	a := must.Value(issuer.Open(issuer.Config{Dir: c.dir, Owner: -1}))(t)
	for name, hosts := range map[string][]string{
		"nats": {"nats", "localhost"}, "service": {"gateway", "localhost", "127.0.0.1"}, "guest": {"guest"},
		"route": {"elsewhere"},
	} {
		must.Value(a.Issue(name, hosts))(t)
	}
	bin := must.Value(proc.Build(t.TempDir(), "github.com/nats-io/nats-server/v2", "nats-server"))(t)
	conf := must.Value(filepath.Abs("../deploy/nats/nats.conf"))(t)
	var clients []string
	for range 3 {
		client := must.Value(proc.FreeAddr())(t)
		route := must.Value(proc.FreeAddr())(t)
		clients = append(clients, "nats://"+client)
		c.routes = append(c.routes, strings.Replace(route, "127.0.0.1", "localhost", 1))
	}
	c.url = strings.Join(clients, ",")
	var routes []string
	for _, r := range c.routes {
		routes = append(routes, "nats://"+r)
	}
	for i := range 3 {
		dir := t.TempDir()
		f := c.files("nats")
		monitor := must.Value(proc.FreeAddr())(t)
		c.servers = append(c.servers, &proc.Process{
			Binary: "/usr/bin/env", Log: filepath.Join(dir, "nats.log"),
			Args: []string{
				fmt.Sprintf("NATS_NAME=nats-%d", i+1),
				fmt.Sprintf("NATS_LISTEN=%q", strings.TrimPrefix(clients[i], "nats://")),
				fmt.Sprintf("NATS_HTTP=%q", monitor),
				fmt.Sprintf("NATS_STORE=%q", dir), "NATS_MAX_STORE=1GB", fmt.Sprintf("NATS_TLS_CERT=%q", f.Cert),
				fmt.Sprintf("NATS_TLS_KEY=%q", f.Key), fmt.Sprintf("NATS_TLS_CA=%q", f.CA),
				fmt.Sprintf("NATS_CLUSTER_LISTEN=%q", strings.Replace(c.routes[i], "localhost", "127.0.0.1", 1)),
				"NATS_ROUTES=[" + strings.Join(routes, ", ") + "]",
				bin, "-c", conf,
			},
			Ready: func(ctx context.Context) bool {
				return proc.OK(ctx, "http://"+monitor+"/healthz?js-server-only=true")
			},
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, s := range c.servers {
		require.NoError(t, s.Start(ctx))
		t.Cleanup(func() { _ = s.Kill() })
	}
	return c
}

// TestX15_TheDeploymentsNATS takes services with their certificate and nobody
// else, keeps every journal three times and syncs every write (SPEC X1, X15).
func TestX15_TheDeploymentsNATS(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	c := newNATSCluster(t)
	cfg := must.Value(dev.Config(t.TempDir()))(t)
	cfg.Auth, cfg.BootstrapToken = app.AuthRequired, bootstrap
	cfg.NATSURL, cfg.NATS, cfg.Replicas = c.url, c.remote("service"), 3
	cfg.TLS, cfg.Archive.URL = c.files("service"), t.TempDir()
	cfg.TLS.ClientCA = cfg.TLS.CA
	h := &house{cfg: cfg}
	h.app = must.Value(app.New(cfg, zap.NewNop(), "test"))(t)
	require.NoError(t, h.app.Start(soon(t)))
	t.Cleanup(func() {
		// A server is lost in this test, after which a stop in order may take longer than this.
		stopping, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = h.app.Stop(stopping)
	})
	require.Eventually(t, func() bool { return h.app.Ready() == nil }, eventually, tick)
	files := c.files("service")
	bin := binary(t)
	out, err := exec.CommandContext(soon(t), bin, "agent", "spawn", "keeper", "--address", h.cfg.GRPCAddr, "--token",
		bootstrap, "--tls-ca-file", files.CA).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "keeper")

	nc := must.Value(c.remote("service").Connect(t.Context(), "test", nil))(t)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	stream := must.Value(js.Stream(t.Context(), jetlog.Place{Plane: "agent"}.Stream()))(t)
	require.Equal(t, 3, stream.CachedInfo().Config.Replicas)
	require.Contains(t, string(must.Value(os.ReadFile("../deploy/nats/nats.conf"))(t)), "sync_interval: always")

	for name, r := range map[string]natsd.Remote{
		"a certificate of another name": c.remote("guest"),
		"no certificate":                {URL: c.url, TLS: certs.Files{CA: files.CA}, ServerName: "nats"},
		"a name that is not a password": {URL: c.url, TLS: c.files("guest"), ServerName: "nats", User: "gateway"},
	} {
		require.Error(t, must.Err(r.Connect(t.Context(), "test", nil)), name)
	}
	require.Error(t, must.Err(nats.Connect(strings.Split(c.url, ",")[0], nats.Timeout(5*time.Second))), "plain text")

	// A server that the routes do not name stays outside, though the authority
	// signed its certificate; one of the cluster would be answered.
	require.True(t, c.routeAnswers(t, "nats"))
	require.False(t, c.routeAnswers(t, "route"))
	require.False(t, c.routeAnswers(t, ""))

	// The doctor, as an operator sees it.
	look := func(more ...string) (status, message, mend string) {
		args := append([]string{
			"doctor", "-o", "json", "--data-dir", h.cfg.DataDir, "--grpc-addr", h.cfg.GRPCAddr, "--http-addr",
			h.cfg.HTTPAddr, "--address", h.cfg.GRPCAddr,
			"--token", bootstrap, "--tls-ca-file", files.CA, "--tls-cert-file", files.Cert, "--tls-key-file", files.Key,
			"--nats-url", c.url, "--replicas", "3", "--nats-tls-server-name", "nats", "--erase-after", "0",
		}, more...)
		out, _ := exec.CommandContext(soon(t), bin, args...).Output() // its findings count, not its exit
		var said struct {
			Findings []struct{ Check, Status, Message, Mend string }
		}
		require.NoError(t, json.Unmarshal(out, &said), string(out))
		for _, f := range said.Findings {
			if f.Check == "nats" {
				status, message, mend = f.Status, f.Message, f.Mend
			}
		}
		return status, message, mend
	}
	status, message, _ := look("--nats-tls-ca-file", files.CA, "--nats-tls-cert-file", files.Cert,
		"--nats-tls-key-file", files.Key)
	require.Equal(t, "ok", status, message)
	other := t.TempDir()
	must.Value(issuer.Open(issuer.Config{Dir: other, Owner: -1}))(t)
	for says, more := range map[string][]string{
		"nats-tls-ca-file must be":       {"--nats-tls-ca-file", filepath.Join(other, "ca.pem")},
		"the servers want a certificate": {"--nats-tls-ca-file", files.CA},
		"let the certificate's name in": {"--nats-tls-ca-file", files.CA, "--nats-tls-cert-file", c.files("guest").
			Cert, "--nats-tls-key-file", c.files("guest").Key},
		"nats-tls-server-name": {
			"--nats-tls-ca-file", files.CA, "--nats-tls-cert-file", files.Cert,
			"--nats-tls-key-file", files.Key, "--nats-tls-server-name", "x",
		},
		"let this user read the file": {"--nats-tls-ca-file", files.CA + "x"},
	} {
		status, message, mend := look(more...)
		require.Equal(t, "problem", status, says)
		require.Contains(t, message+mend, says)
	}

	// One server may go, and what was answered is there.
	require.NoError(t, c.servers[0].Kill())
	agents := agentv1.NewAgentServiceClient(h.conn(t, bootstrap, client.WithTLS(c.trust(t))))
	require.Eventually(t, func() bool {
		_, err := agents.GetAgent(soon(t), &agentv1.GetAgentRequest{AgentId: "keeper"})
		return err == nil
	}, eventually, tick)
	require.Eventually(t, func() bool {
		_, err := agents.EnqueueMessage(soon(t), &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: "hello"})
		return err == nil && h.app.Ready() == nil
	}, eventually, 50*time.Millisecond)
}

// trust returns a client's configuration.
func (c *natsCluster) trust(t *testing.T) *tls.Config {
	raw := must.Value(os.ReadFile(filepath.Join(c.dir, "ca.pem")))(t)
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	require.True(t, cfg.RootCAs.AppendCertsFromPEM(raw))
	return cfg
}

// routeAnswers opens a route with a name's certificate and reports whether the
// cluster goes on with it.
func (c *natsCluster) routeAnswers(t *testing.T, name string) bool {
	conn, err := net.DialTimeout("tcp", strings.Replace(c.routes[1], "localhost", "127.0.0.1", 1), 5*time.Second)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	cfg := c.trust(t)
	cfg.ServerName = "nats"
	if name != "" {
		f := c.files(name)
		cfg.Certificates = []tls.Certificate{must.Value(tls.LoadX509KeyPair(f.Cert, f.Key))(t)}
	}
	route := tls.Client(conn, cfg)
	require.NoError(t, route.Handshake(), "what is shown is looked at after it")
	lines := bufio.NewReader(route)
	if _, err := lines.ReadString('\n'); err != nil { // INFO
		return false
	}
	_, err = route.Write([]byte(`CONNECT {"verbose":false,"tls_required":true,"name":"stranger","cluster":"quartet"}` +
		"\r\nPING\r\n"))
	require.NoError(t, err)
	for {
		line, err := lines.ReadString('\n')
		switch {
		case err != nil || strings.HasPrefix(line, "-ERR"):
			return false
		case strings.HasPrefix(line, "PONG"):
			return true
		}
	}
}

// TestX15_AProcessWaitsForNATS starts a server before the NATS server that it needs.
func TestX15_AProcessWaitsForNATS(t *testing.T) {
	proc.Long(t)
	nats, url := natsProcess(t)
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), url))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- srv.Start(ctx) }()
	t.Cleanup(func() { _ = srv.Kill() })
	require.Eventually(t, func() bool { return strings.Contains(logOf(t, srv), "waiting for NATS") }, time.Minute,
		20*time.Millisecond)
	select {
	case err := <-started:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(3 * time.Second):
	}
	require.NoError(t, nats.Start(ctx))
	t.Cleanup(func() { _ = nats.Kill() })
	require.NoError(t, <-started)
	require.Equal(t, 1, strings.Count(logOf(t, srv), "waiting for NATS"))
}

// TestR5_AServerWithSmallMessagesIsRefused: a stock NATS server allows 1 MB, and a journal has larger frames.
func TestR5_AServerWithSmallMessagesIsRefused(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	nats, url := natsProcess(t)
	conf := nats.Args[1]
	text := must.Value(os.ReadFile(conf))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for payload, ready := range map[string]bool{"1048576": false, "6356991": false, "6356992": true, "8388608": true} {
		require.NoError(t, os.WriteFile(conf, []byte(strings.Replace(string(text), "8388608", payload, 1)), 0o600))
		require.NoError(t, nats.Start(ctx))
		srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), url))(t)
		err := srv.Start(ctx)
		if ready {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "the NATS server allows messages of "+payload+
				" bytes, and a journal needs 6356992: set max_payload: 8MB")
		}
		require.NoError(t, srv.Kill())
		require.NoError(t, nats.Kill())
	}
}

// natsProcess returns a nats-server that is not started, and its address.
func natsProcess(t *testing.T) (*proc.Process, string) {
	t.Helper()
	bin := must.Value(proc.Build(t.TempDir(), "github.com/nats-io/nats-server/v2", "nats-server"))(t)
	nats, url, err := proc.NewNATS(bin, filepath.Join(t.TempDir(), "nats"))
	require.NoError(t, err)
	return nats, url
}

// logOf returns what a server wrote to its log.
func logOf(t *testing.T, srv *proc.Quartet) string {
	t.Helper()
	b, err := os.ReadFile(srv.Log)
	if err != nil {
		return ""
	}
	return string(b)
}
