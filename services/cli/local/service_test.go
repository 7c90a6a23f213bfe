package local

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/cli/exit"
	"quartet/services/cli/session"
)

// machine is a home directory and a service manager that records what it was asked.
type machine struct {
	t          *testing.T
	home, asks string
}

// newMachine makes programs called systemctl and launchctl the first ones on the path. They record their arguments;
// is-active and print succeed while the file up exists, which enable and bootstrap make.
func newMachine(t *testing.T) *machine {
	m := &machine{t: t, home: t.TempDir()}
	m.asks = filepath.Join(m.home, "asks")
	bin := filepath.Join(m.home, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >> %[1]s/asks
case "$*" in
  *is-active*|print*) test -e %[1]s/up;;
  *enable*|bootstrap*) if test -e %[1]s/broken; then echo "no such bus" >&2; exit 1; fi; touch %[1]s/up;;
  *disable*|bootout*) rm -f %[1]s/up;;
esac
`, m.home)
	for _, name := range []string{"systemctl", "launchctl"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("HOME", m.home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	return m
}

// run runs `quartet service`.
func (m *machine) run(args ...string) (out string, code int) {
	m.t.Helper()
	servers := pflag.NewFlagSet("servers", pflag.ContinueOnError)
	servers.String("data-dir", "", "")
	servers.String("grpc-addr", "127.0.0.1:1", "")
	servers.String("bootstrap-token", "", "")
	servers.StringSlice("worker-roots", nil, "")
	servers.String("embedded-worker", "auto", "")
	root := &cobra.Command{Use: "quartet", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(ServiceCommand(session.New(root.PersistentFlags(), nil), servers))
	var o bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&o)
	root.SetArgs(append([]string{"service"}, args...))
	cmd, err := root.ExecuteContextC(m.t.Context())
	if err != nil {
		code = exit.Report(cmd, err)
	}
	return o.String(), code
}

// asked returns what the manager was asked since the last call.
func (m *machine) asked() string {
	raw, _ := os.ReadFile(m.asks)
	require.NoError(m.t, os.RemoveAll(m.asks))
	return string(raw)
}

func TestInstallStatusRemove(t *testing.T) {
	m := newMachine(t)
	at := must.Value(servicePlace())(t)
	out, code := m.run("status")
	require.Equal(t, exit.NotFound, code)
	require.Contains(t, out, "no service is installed")

	out, code = m.run("install", "--", "--data-dir", "/a b", "--grpc-addr=127.0.0.1:2")
	require.Zero(t, code, out)
	require.Contains(t, out, at.file)
	text := must.Value(os.ReadFile(at.file))(t)
	self := must.Value(os.Executable())(t)
	for _, want := range []string{self, "/a b", "--embedded-worker=off"} {
		require.Contains(t, string(text), want)
	}
	require.NotEmpty(t, m.asked())
	out, code = m.run("status")
	require.Zero(t, code, out)
	require.Regexp(t, `running +yes`, out)
	require.Regexp(t, `answers +no`, out, "nothing listens there")
	out, _ = m.run("status", "-o", "json")
	require.Contains(t, out, `"address": "127.0.0.1:2"`)
	require.Contains(t, out, `"current": true`)
	m.asked()

	out, code = m.run("install", "--", "--worker-roots", "/src")
	require.Zero(t, code, out)
	text = must.Value(os.ReadFile(at.file))(t)
	require.NotContains(t, string(text), "embedded-worker", "the flags say where commands run")
	asked := m.asked()
	stop, start := strings.Join(at.unload[1:], " "), strings.Join(at.load[1:], " ")
	require.Less(t, strings.Index(asked, stop), strings.Index(asked, start), "it is started again: %s", asked)
	require.Contains(t, asked, stop)

	require.NoError(t, os.Remove(filepath.Join(m.home, "up")))
	_, code = m.run("status")
	require.Equal(t, exit.Unavailable, code)
	out, code = m.run("remove")
	require.Zero(t, code, out)
	require.NoFileExists(t, at.file)
	out, code = m.run("remove")
	require.Zero(t, code)
	require.Contains(t, out, "no service is installed")

	require.NoError(t, os.WriteFile(filepath.Join(m.home, "broken"), nil, 0o600))
	out, code = m.run("install")
	require.Equal(t, exit.Failed, code)
	require.Contains(t, out, "no such bus")
	m.asked()
	_, code = m.run("install", "--file-only")
	require.Zero(t, code)
	require.Empty(t, m.asked())
}

func TestWhatAServiceMayNotHave(t *testing.T) {
	m := newMachine(t)
	for want, args := range map[string][]string{
		"unknown flag":                    {"install", "--", "--data-dri", "/x"},
		"is no flag of quartet dev":       {"install", "--", "x"},
		"may not be in the definition":    {"install", "--", "--bootstrap-token", "hunter2"},
		"\"quartet service status\" take": {"status", "x"},
	} {
		out, code := m.run(args...)
		require.Equal(t, exit.Usage, code, want)
		require.Contains(t, out, want)
		require.NotContains(t, out, "hunter2")
	}
}

// The definitions are what their managers read, whatever is in a path.
func TestDefinitions(t *testing.T) {
	odd := `/a b/100%/"q"\$HOME<&>/quartet`
	unit := systemd().define(odd, []string{"--data-dir", "x y"}, "")
	require.Contains(t, unit, `ExecStart="/a b/100%%/\"q\"\\$$HOME<&>/quartet" dev "--data-dir" "x y"`)
	plist := launchd(501).define(odd, []string{"--data-dir", "x y"}, "/log")
	var doc struct {
		Strings []string `xml:"dict>array>string"`
	}
	require.NoError(t, xml.Unmarshal([]byte(plist), &doc))
	require.Equal(t, []string{odd, "dev", "--data-dir", "x y"}, doc.Strings)
	require.Equal(t, "127.0.0.1:5", addressIn(launchd(1).define("q", []string{"--grpc-addr", "127.0.0.1:5"}, ""),
		pflag.NewFlagSet("", pflag.ContinueOnError)))

	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // the rest needs systemd
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	self := must.Value(os.Executable())(t)
	file := filepath.Join(t.TempDir(), unitName)
	require.NoError(t, os.WriteFile(file, []byte(systemd().define(self, nil, "")), 0o600))
	out, err := exec.CommandContext(t.Context(), verify, "--user", "verify", file).CombinedOutput()
	require.NoError(t, err, string(out))
}
