package cli

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/cli/admin"
	"quartet/services/cli/exit"
)

// runCerts runs the command line without any server.
func runCerts(t *testing.T, now time.Time, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Run(t.Context(), Servers{Now: func() time.Time { return now }}, append([]string{"certs"}, args...),
		strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// Certificates are created, kept, renewed and shown without OpenSSL.
func TestX15_CertificatesWithoutOpenSSL(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "certs"), time.Now()
	args := []string{
		"init", dir, "--issue", "server=quartet.example.com, 127.0.0.1,127.0.0.1", "--issue", "runner-1",
		"--secret", "server/key", "--days", "90", "-o", "json",
	}
	run := func(at time.Time, args ...string) (done []string) {
		code, out, errs := runCerts(t, at, args...)
		require.Zero(t, code, errs)
		var report struct{ Files []admin.CertificateFile }
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		for _, f := range report.Files {
			done = append(done, f.Done+" "+must.Value(filepath.Rel(dir, f.Path))(t))
		}
		return done
	}
	require.Equal(t, []string{"made ca.pem", "made server/tls.pem", "made runner-1/tls.pem", "made server/key"},
		run(now, args...))
	require.Equal(t, []string{"kept ca.pem", "kept server/tls.pem", "kept runner-1/tls.pem", "kept server/key"},
		run(now, args...))
	require.Equal(t, []string{"kept ca.pem", "renewed server/tls.pem", "renewed runner-1/tls.pem", "kept server/key"},
		run(now.AddDate(0, 0, 61), args...))
	must.Value(tls.LoadX509KeyPair(filepath.Join(dir, "server", "tls.pem"), filepath.Join(dir, "server", "tls.key")))(t)

	code, out, errs := runCerts(t, now, "show", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "quartet.example.com, 127.0.0.1")
	require.Contains(t, out, "Quartet's own authority")
	code, out, _ = runCerts(t, now.AddDate(0, 0, 200), "show", filepath.Join(dir, "server", "tls.pem"))
	require.Equal(t, exit.Failed, code)
	require.Contains(t, out, "(expired)")
	code, out, _ = runCerts(t, now, "show", filepath.Join(dir, "ca.pem"), "-o", "json")
	require.Zero(t, code)
	require.Contains(t, out, `"authority":true`)
	require.NotContains(t, out, "PRIVATE")
}

func TestCertsArgumentsAreChecked(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"DIR is missing":       {"init"},
		"FILE is missing":      {"show"},
		"is no name":           {"init", dir, "--issue", "Server=a"},
		"neither a host name":  {"init", dir, "--issue", "server=a b"},
		"--days 0":             {"init", dir, "--days", "0"},
		"must be 1 to 825":     {"init", dir, "--days", "826"},
		"must be UID:GID":      {"init", dir, "--owner", "nobody"},
		"no path inside":       {"init", dir, "--secret", "../key"},
		"no such file":         {"show", filepath.Join(dir, "nothing")},
		`"frob" is not a comm`: {"frob"},
	} {
		code, _, errs := runCerts(t, time.Now(), args...)
		require.Equal(t, exit.Usage, code, "%s: %s", want, errs)
		require.Contains(t, errs, want)
	}
	for _, days := range []string{"1", "825"} {
		code, _, errs := runCerts(t, time.Now(), "init", filepath.Join(dir, days), "--days", days)
		require.Zero(t, code, errs)
	}
}

// --owner gives all files to another user, as in a volume of a container.
func TestCertsForAnotherUser(t *testing.T) {
	dir := t.TempDir()
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 { // only root can change the owner of files
		uid, gid = 65532, 65532
	}
	code, _, errs := runCerts(t, time.Now(), "init", dir, "--issue", "service=a", "--secret", "service/key", "--owner",
		fmt.Sprintf("%d:%d", uid, gid))
	require.Zero(t, code, errs)
	for _, name := range []string{
		"service", "service/tls.key", "service/tls.pem", "service/ca.pem", "service/key",
		"authority/ca.key",
	} {
		fi := must.Value(os.Stat(filepath.Join(dir, name)))(t)
		st, ok := fi.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.Equal(t, []uint32{uint32(uid), uint32(gid)}, []uint32{st.Uid, st.Gid}, name)
	}
}
