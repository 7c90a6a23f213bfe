package helm

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
)

// built is the directory of the program, once a test has needed it.
var built string

// binary builds the program once and returns its path, as make build does, so that it is in the cache after that.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "quartet-helm-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "quartet")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w",
		"-o", path, "./cmd/quartet")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built) // what is left is in the system's temporary directory
	}
	os.Exit(code)
}

// program returns the path of the program.
func program(t *testing.T) string {
	path, err := binary()
	require.NoError(t, err)
	return path
}

// run runs the program in an environment of its own.
func run(t *testing.T, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Env = append([]string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Every flag of a container, in its arguments and probes, is one of the command.
func TestFlagsExist(t *testing.T) {
	texts := map[string]string{} // by the command
	for set, values := range sets {
		for _, o := range mustRender(t, values) {
			if o.Kind != "StatefulSet" {
				continue
			}
			c := decode[appsv1.StatefulSet](t, o).Spec.Template.Spec.Containers[0]
			commands := [][]string{c.Args}
			if p := c.ReadinessProbe; p != nil && p.Exec != nil {
				require.Equal(t, "/quartet", p.Exec.Command[0])
				commands = append(commands, p.Exec.Command[1:])
			}
			for _, args := range commands {
				if texts[args[0]] == "" {
					said, err := run(t, nil, args[0], "--help")
					require.NoError(t, err, said)
					texts[args[0]] = said
				}
				for _, a := range args[1:] {
					if strings.HasPrefix(a, "--") {
						require.Regexp(t, `(?m)^\s+(-\w, )?`+a+`\b`, texts[args[0]], "%s: quartet %s", set, args)
					}
				}
			}
		}
	}
}

// certificates makes what the Secrets of a release would have, and returns the directory.
func certificates(t *testing.T) string {
	dir := t.TempDir()
	out, err := run(t, nil, "certs", "init", dir, "--issue=server=gateway,localhost,127.0.0.1", "--secret=keys/key")
	require.NoError(t, err, out)
	return dir
}

// placed returns settings whose files are those of this machine in place of those of a pod.
func placed(s map[string]any, from, to string) map[string]any {
	out := map[string]any{}
	for k, v := range s {
		if text, ok := v.(string); ok && strings.HasPrefix(text, from) {
			v = to + strings.TrimPrefix(text, from)
		}
		out[k] = v
	}
	return out
}

// freePort returns an address of loopback at which nothing listens.
func freePort(t *testing.T) string {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// The program starts with what the ConfigMap has, and answers the chart's probe.
func TestTheProgramStartsWithTheSettings(t *testing.T) {
	data := t.TempDir()
	s := placed(config(t, mustRender(t, sets["single"])), "/data", data)
	s["grpc-addr"], s["http-addr"], s["metrics-addr"] = freePort(t), freePort(t), freePort(t)
	file := filepath.Join(t.TempDir(), "quartet.yaml")
	require.NoError(t, os.WriteFile(file, document(t, s), 0o600))
	args := append([]string{}, decode[appsv1.StatefulSet](t, one(t, mustRender(t, ""), "StatefulSet", "prod-quartet")).
		Spec.Template.Spec.Containers[0].Args...)
	require.Equal(t, "/etc/quartet/quartet.yaml", args[len(args)-1])
	args[len(args)-1] = file
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Env = []string{"HOME=" + data}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	ready := ask(t, "http://"+s["http-addr"].(string)+"/readyz") &&
		ask(t, "http://"+s["http-addr"].(string)+"/healthz") && ask(t, "http://"+s["metrics-addr"].(string)+"/metrics")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	err := cmd.Wait()
	require.True(t, ready, "%s", &log)
	require.NoError(t, err, "%s", &log)
}

// ask reports whether a page answers 200 within a minute.
func ask(t *testing.T, url string) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// The program accepts the settings of all sets: quartet doctor reads them as serve does, and looks at the certificates.
func TestTheProgramAcceptsTheSettings(t *testing.T) {
	certs := certificates(t)
	credentials := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(credentials, []byte("access_key_id = a\nsecret_access_key = b\n"), 0o600))
	for set, values := range sets {
		t.Run(set, func(t *testing.T) {
			s := placed(placed(config(t, mustRender(t, values)), "/data", t.TempDir()), "/tls/tls.",
				filepath.Join(certs, "server")+"/tls.")
			s = placed(placed(s, "/tls/ca.pem", filepath.Join(certs, "ca.pem")), "/keys/key",
				filepath.Join(certs, "keys", "key"))
			// The doctor asks for the bucket, and a test asks nobody but this machine.
			if at, _ := s["archive"].(string); strings.HasPrefix(at, "s3:") {
				s["archive"] = "s3://journals/prod?endpoint=https://" + freePort(t)
			}
			s = placed(placed(s, "/archive/ca.pem", filepath.Join(certs, "ca.pem")), "/archive/credentials",
				credentials)
			require.Equal(t, []string{"ok"}, settingsFindings(t, s))
			s["grpc-adr"] = "127.0.0.1:1"
			require.NotEqual(t, []string{"ok"}, settingsFindings(t, s), "a setting that does not exist is noticed")
		})
	}
}

// settingsFindings returns what quartet doctor says about settings.
func settingsFindings(t *testing.T, s map[string]any) []string {
	file := filepath.Join(t.TempDir(), "quartet.yaml")
	require.NoError(t, os.WriteFile(file, document(t, s), 0o600))
	// exit code 1: no server runs
	text, _ := run(t, nil, "doctor", "--config", file, "-o", "json", "--address", freePort(t))
	var d struct {
		Findings []struct{ Check, Status, Message string }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &d), text)
	var out []string
	for _, f := range d.Findings {
		if f.Check == "settings" {
			if f.Status != "ok" {
				t.Log(f.Message)
			}
			out = append(out, f.Status)
		}
	}
	require.NotEmpty(t, out, text)
	return out
}
