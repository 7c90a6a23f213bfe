package authority_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/authority"
	"quartet/pkg/must"
)

const day = 24 * time.Hour

func open(t *testing.T, dir string, days int, now time.Time) *authority.Authority {
	t.Helper()
	a := must.Value(authority.Open(authority.Config{Dir: dir, Days: days, Owner: -1, Group: -1, Now: func() time.Time {
		return now
	}}))(t)
	return a
}

// shake shows the client's certificate to a server with the server's.
func shake(t *testing.T, dir, server, client, name string) error {
	t.Helper()
	raw := must.Value(os.ReadFile(filepath.Join(dir, "ca.pem")))(t)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(raw))
	pair := func(name string) []tls.Certificate {
		c, err := tls.LoadX509KeyPair(filepath.Join(dir, name, "tls.pem"), filepath.Join(dir, name, "tls.key"))
		require.NoError(t, err)
		return []tls.Certificate{c}
	}
	lis := must.Value(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: pair(server),
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}))(t)
	defer lis.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := lis.Accept()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = conn.Write([]byte("x"))
			_ = conn.Close()
		}
		done <- err
	}()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: name, Certificates: pair(client),
	}}
	conn, err := d.DialContext(t.Context(), "tcp", lis.Addr().String())
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	<-done
	return err
}

func TestCertificatesThatServersAndClientsTake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	a := open(t, dir, 0, time.Now())
	require.Equal(t, authority.Made, a.Done)
	done, err := a.Issue("server", []string{"quartet.example.com", "*.cluster.local", "localhost", "127.0.0.1", "::1"})
	require.NoError(t, err)
	require.Equal(t, authority.Made, done)
	must.Value(a.Issue("runner-1", nil))(t)
	for _, name := range []string{"quartet.example.com", "agent.cluster.local", "127.0.0.1", "::1"} {
		require.NoError(t, shake(t, dir, "server", "runner-1", name), name)
	}
	require.Error(t, shake(t, dir, "server", "runner-1", "elsewhere.example.com"))
	require.Error(t, shake(t, dir, "runner-1", "server", "localhost"), "a client's certificate is for no host")

	seen := must.Value(authority.Look(filepath.Join(dir, "server", "tls.pem")))(t)
	require.Equal(t, "server", seen.Name)
	require.ElementsMatch(t, []string{"quartet.example.com", "*.cluster.local", "localhost", "127.0.0.1", "::1"},
		seen.Hosts)
	require.WithinDuration(t, time.Now().AddDate(0, 0, authority.DefaultDays), seen.NotAfter, time.Minute)
	for name, mode := range map[string]os.FileMode{
		"ca.pem": 0o644, "authority/ca.key": 0o600, "server/tls.key": 0o600,
		"server/tls.pem": 0o644, "authority": 0o700 | os.ModeDir,
	} {
		require.Equal(t, mode, must.Value(os.Stat(filepath.Join(dir, name)))(t).Mode(), name)
	}
}

func TestAgainKeepsWhatIsGoodAndRenewsTheRest(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	read := func(name string) string {
		return string(must.Value(os.ReadFile(filepath.Join(dir, name)))(t))
	}
	issue := func(at time.Time, hosts ...string) string {
		a := open(t, dir, 30, at)
		return must.Value(a.Issue("server", hosts))(t)
	}
	require.Equal(t, authority.Made, issue(now, "a", "b"))
	first, ca := read("server/tls.pem"), read("ca.pem")
	require.Equal(t, authority.Kept, issue(now, "b", "a"), "in another order")
	require.Equal(t, authority.Kept, issue(now.Add(19*day), "a", "b"))
	require.Equal(t, first, read("server/tls.pem"))
	require.Equal(t, authority.Renewed, issue(now.Add(21*day), "a", "b"), "the last third of its life")
	require.NotEqual(t, first, read("server/tls.pem"))
	require.Equal(t, authority.Renewed, issue(now.Add(21*day), "a", "c"), "other hosts")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server", "tls.pem"), []byte("half"), 0o600))
	require.Equal(t, authority.Renewed, issue(now.Add(21*day), "a", "c"), "not a certificate")
	require.NoError(t, os.Remove(filepath.Join(dir, "server", "tls.key")))
	require.Equal(t, authority.Renewed, issue(now.Add(21*day), "a", "c"), "no key")
	require.Equal(t, ca, read("ca.pem"), "the authority stays")

	other := t.TempDir()
	require.Equal(t, authority.Made, open(t, other, 0, now).Done)
	for _, name := range []string{"ca.pem", "authority/ca.key"} {
		raw := must.Value(os.ReadFile(filepath.Join(other, name)))(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	require.Equal(t, authority.Renewed, issue(now.Add(21*day), "a", "c"), "another authority")

	a := open(t, dir, 0, now)
	done := must.Value(a.Secret("server/key"))(t)
	require.Equal(t, authority.Made, done)
	secret := read("server/key")
	require.Regexp(t, `^[0-9a-f]{64}\n$`, secret)
	done = must.Value(a.Secret("server/key"))(t)
	require.Equal(t, authority.Kept, done)
	require.Equal(t, secret, read("server/key"))
}

// A certificate never outlives who signed it.
func TestAnAuthorityNearItsEnd(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	open(t, dir, 0, now)
	a := open(t, dir, 0, now.AddDate(9, 11, 0))
	must.Value(a.Issue("server", []string{"a"}))(t)
	root := must.Value(authority.Look(filepath.Join(dir, "ca.pem")))(t)
	leaf := must.Value(authority.Look(filepath.Join(dir, "server", "tls.pem")))(t)
	require.Equal(t, root.NotAfter, leaf.NotAfter)
}

// Somebody else's authority: what is there stays, and nothing is signed.
func TestAForeignAuthority(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	must.Value(open(t, dir, 30, now).Issue("server", []string{"a"}))(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "authority", "ca.key")))
	a := open(t, dir, 30, now.Add(29*day))
	require.Equal(t, authority.Kept, a.Done)
	require.Equal(t, authority.Kept, must.Value(a.Issue("server", []string{"b"}))(t))
	must.Fail(a.Issue("another", nil))(t, "put tls.pem, tls.key and ca.pem there yourself")
}

func TestWhatIsNotMade(t *testing.T) {
	for days, good := range map[int]bool{-1: false, 1: true, authority.MaxDays: true, authority.MaxDays + 1: false} {
		_, err := authority.Open(authority.Config{Dir: t.TempDir(), Days: days, Owner: -1})
		require.Equal(t, good, err == nil, days)
	}
	dir := t.TempDir()
	a := open(t, dir, 0, time.Now())
	hosts := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("host-%d", i))
		}
		return out
	}
	for name, hosts := range map[string][]string{
		"": nil, "authority": nil, "../x": nil, "Server": nil, "a b": nil, "good": {"not a host"}, "fine": {"-x"},
		"well": {""}, "much": hosts(authority.MaxHosts + 1),
	} {
		require.Error(t, must.Err(a.Issue(name, hosts)), name)
	}
	for _, n := range []int{authority.MaxHosts - 1, authority.MaxHosts} {
		must.Value(a.Issue("many", hosts(n)))(t)
	}
	for _, path := range []string{"../key", "/key", ""} {
		require.Error(t, must.Err(a.Secret(path)), path)
	}
	must.Fail(authority.Look(filepath.Join(dir, "authority", "ca.key")))(t, "no certificate in PEM")

	// A key that is not the certificate's.
	strange := t.TempDir()
	open(t, strange, 0, time.Now())
	raw := must.Value(os.ReadFile(filepath.Join(strange, "authority", "ca.key")))(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "authority", "ca.key"), raw, 0o600))
	must.Fail(authority.Open(authority.Config{Dir: dir, Owner: -1}))(t, "is not the key of")
}
