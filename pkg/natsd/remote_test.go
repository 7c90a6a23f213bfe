package natsd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/authority"
	"quartet/pkg/certs"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

// serveNATS returns a real NATS server with a configuration of the test's.
func serveNATS(t *testing.T, conf string) (url string, stop func()) {
	t.Helper()
	lis := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := lis.Addr().String()
	require.NoError(t, lis.Close())
	return "nats://" + addr, serveNATSAt(t, addr, conf)
}

func serveNATSAt(t *testing.T, addr, conf string) (stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf("listen: %q\n%s", addr, conf)), 0o600))
	opts := must.Value(server.ProcessConfigFile(file))(t)
	opts.NoSigs, opts.NoLog = true, true
	srv := must.Value(server.NewServer(opts))(t)
	srv.Start()
	require.True(t, srv.ReadyForConnections(10*time.Second))
	stop = func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	t.Cleanup(stop)
	return stop
}

// pair returns the files of a name of an authority.
func pair(dir, name string) certs.Files {
	at := filepath.Join(dir, name)
	return certs.Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(at, "tls.pem"), Key: filepath.Join(at, "tls.key"),
	}
}

func tlsConf(f certs.Files, more string) string {
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, timeout: 5, %s }\n", f.Cert, f.Key, f.CA, more)
}

func ours(t *testing.T, now time.Time, days int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	issue(t, dir, now, days)
	return dir
}

func issue(t *testing.T, dir string, now time.Time, days int) {
	t.Helper()
	a, err := authority.Open(authority.Config{Dir: dir, Days: days, Owner: -1, Now: func() time.Time { return now }})
	require.NoError(t, err)
	for name, hosts := range map[string][]string{
		"server":    {"127.0.0.1", "nats.example.com"},
		"elsewhere": {"elsewhere.example.com"}, "client": {"quartet-service"}, "stranger": {"somebody"},
	} {
		must.Value(a.Issue(name, hosts))(t)
	}
}

// ended signs a certificate with dir's authority that ended an hour ago.
func ended(t *testing.T, dir, name string) certs.Files {
	t.Helper()
	read := func(path string) []byte {
		raw := must.Value(os.ReadFile(filepath.Join(dir, path)))(t)
		block, _ := pem.Decode(raw)
		return block.Bytes
	}
	ca := must.Value(x509.ParseCertificate(read("ca.pem")))(t)
	caKey := must.Value(x509.ParsePKCS8PrivateKey(read("authority/ca.key")))(t)
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter: time.Now().Add(-time.Hour),
		DNSNames: []string{"quartet-service"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, &key.PublicKey, caKey))(t)
	raw := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	f := pair(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(f.Cert), 0o700))
	require.NoError(t, os.WriteFile(f.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	return f
}

func secret(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestX15_WhoIsLetInToNATS connects to real servers, well and badly. What is
// refused says how to mend it, and has no secret in it.
func TestX15_WhoIsLetInToNATS(t *testing.T) {
	dir, others := ours(t, time.Now(), 365), ours(t, time.Now(), 365)
	good := pair(dir, "client")
	onlyCA := certs.Files{CA: good.CA}
	plain, _ := serveNATS(t, "")
	server, _ := serveNATS(t, tlsConf(pair(dir, "server"), "verify: false"))
	mutual, _ := serveNATS(t, tlsConf(pair(dir, "server"), "verify_and_map: true")+
		"authorization { users: [{user: quartet-service}] }")
	old, _ := serveNATS(t, tlsConf(ended(t, dir, "ended"), "verify: false"))
	elsewhere, _ := serveNATS(t, tlsConf(pair(dir, "elsewhere"), "verify: false"))
	passwords, _ := serveNATS(t, tlsConf(pair(dir, "server"), "verify: false")+
		"authorization { user: quartet, password: hush-hush }")
	nkey, _ := serveNATS(t, text(t, "testdata/nkey.conf"))
	jwt, _ := serveNATS(t, text(t, "testdata/operator.conf"))
	in := strings.Replace(passwords, "nats://", "nats://quartet:hush-hush@", 1)

	for name, c := range map[string]struct {
		remote natsd.Remote
		says   []string // empty: connects
	}{
		"plain text": {natsd.Remote{URL: plain}, nil},
		"TLS":        {natsd.Remote{URL: server, TLS: onlyCA}, nil},
		"TLS by the address": {natsd.Remote{
			URL: strings.Replace(server, "nats://", "tls://", 1),
			TLS: onlyCA,
		}, nil},
		"TLS, with a certificate nobody asks": {natsd.Remote{URL: server, TLS: good}, nil},
		"TLS, by another name": {
			natsd.Remote{URL: server, TLS: onlyCA, ServerName: "nats.example.com"},
			nil,
		},
		"mutual": {natsd.Remote{URL: mutual, TLS: good}, nil},
		"a password": {natsd.Remote{
			URL: passwords, TLS: onlyCA, User: "quartet", PasswordFile: secret(t, "hush-hush\n"),
		}, nil},
		"a password in the address": {natsd.Remote{URL: in, TLS: onlyCA}, nil},
		"an nkey":                   {natsd.Remote{URL: nkey, NKeyFile: "testdata/user.nk"}, nil},
		"a JWT":                     {natsd.Remote{URL: jwt, CredsFile: "testdata/user.creds"}, nil},

		"nothing listens": {natsd.Remote{URL: "nats://127.0.0.1:1"}, []string{"start it"}},
		"TLS where there is none": {
			natsd.Remote{URL: plain, TLS: onlyCA},
			[]string{"secure connection not available", "switch TLS on"},
		},
		"the system's authorities": {
			natsd.Remote{URL: server},
			[]string{"unknown authority", "nats-tls-ca-file must be"},
		},
		"another authority": {
			natsd.Remote{URL: server, TLS: certs.Files{CA: filepath.Join(others, "ca.pem")}},
			[]string{"nats-tls-ca-file must be"},
		},
		"an ended certificate of theirs": {
			natsd.Remote{URL: old, TLS: onlyCA},
			[]string{"has expired", "renew the servers' certificate"},
		},
		"another host's certificate": {
			natsd.Remote{URL: elsewhere, TLS: onlyCA},
			[]string{"nats-tls-server-name"},
		},
		"another name than wanted": {
			natsd.Remote{URL: server, TLS: onlyCA, ServerName: "x.example.com"},
			[]string{"nats-tls-server-name"},
		},
		"no certificate of ours": {
			natsd.Remote{URL: mutual, TLS: onlyCA},
			[]string{"the servers want a certificate", "nats-tls-cert-file"},
		},
		"a stranger's certificate": {
			natsd.Remote{URL: mutual, TLS: certs.Files{
				CA: good.CA, Cert: pair(others, "client").Cert, Key: pair(others, "client").Key,
			}}, []string{"signed by the authority that the servers trust"},
		},
		"a certificate of somebody else": {
			natsd.Remote{URL: mutual, TLS: pair(dir, "stranger")},
			[]string{"Authorization Violation", "let the certificate's name in"},
		},
		"an ended certificate of ours": {
			natsd.Remote{URL: mutual, TLS: ended(t, dir, "late")},
			[]string{"renew nats-tls-cert-file"},
		},
		"no password": {
			natsd.Remote{URL: passwords, TLS: onlyCA},
			[]string{"the servers do not know this user"},
		},
		"a wrong password": {natsd.Remote{
			URL: passwords, TLS: onlyCA, User: "quartet", PasswordFile: secret(t, "tush"),
		}, []string{"the servers do not know this user"}},
		"a wrong password in the address": {natsd.Remote{
			URL: strings.Replace(in, "hush-hush", "tush-tush", 1),
			TLS: onlyCA,
		}, []string{"the servers do not know this user"}},
		"no such password file": {natsd.Remote{
			URL: passwords, TLS: onlyCA, User: "quartet", PasswordFile: "testdata/nothing",
		}, []string{"nats-password-file", "let this user read the file"}},
		"no such nkey": {
			natsd.Remote{URL: nkey, NKeyFile: "testdata/nothing"},
			[]string{"let this user read the file"},
		},
		"no such JWT": {
			natsd.Remote{URL: jwt, CredsFile: "testdata/nothing"},
			[]string{"let this user read the file"},
		},
		"no such authority": {
			natsd.Remote{URL: server, TLS: certs.Files{CA: "testdata/nothing"}},
			[]string{"nats-tls-ca-file", "let this user read the file"},
		},
		"half a pair": {
			natsd.Remote{URL: server, TLS: certs.Files{Cert: good.Cert}},
			[]string{"nats-tls-cert-file and nats-tls-key-file go together"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			nc, err := c.remote.Connect(ctx, "test", nil)
			if len(c.says) == 0 {
				require.NoError(t, err)
				defer nc.Close()
				require.NoError(t, nc.FlushWithContext(ctx))
				_, plainErr := nc.TLSConnectionState()
				require.Equal(t, c.remote.Encrypted(), plainErr == nil)
				return
			}
			var refused *natsd.Refused
			require.ErrorAs(t, err, &refused)
			for _, say := range c.says {
				require.Contains(t, err.Error(), say)
			}
			for _, secret := range []string{"hush", "tush"} {
				require.NotContains(t, err.Error(), secret)
			}
		})
	}
}

func text(t *testing.T, path string) string {
	return string(must.Value(os.ReadFile(path))(t))
}

// TestX15_NATSFilesAreReadAgain: passwords, certificates and authorities that are
// replaced count at the next connect, of a connection that there is as well.
func TestX15_NATSFilesAreReadAgain(t *testing.T) {
	dir := ours(t, time.Now(), 365)
	password := secret(t, "first")
	conf := func(word string) string {
		return tlsConf(pair(dir, "server"), "verify: true") + "authorization { user: quartet, password: " + word + " }"
	}
	url, stop := serveNATS(t, conf("first"))
	core, logs := observer.New(zap.WarnLevel)
	nc := must.Value(natsd.Remote{URL: url, TLS: pair(dir, "client"), User: "quartet", PasswordFile: password}.Connect(
		t.Context(), "test", zap.New(core)))(t)
	defer nc.Close()
	stop()

	// Another authority, other certificates and another password; our side is late.
	later := ours(t, time.Now(), 365)
	for _, name := range []string{"server/tls.pem", "server/tls.key"} {
		replace(t, filepath.Join(later, name), filepath.Join(dir, name))
	}
	serverSide := pair(dir, "server")
	serverSide.CA = filepath.Join(later, "ca.pem")
	serveNATSAt(t, strings.TrimPrefix(url, "nats://"), tlsConf(serverSide, "verify: true")+
		"authorization { user: quartet, password: second }")
	told := func(part string) func() bool {
		return func() bool {
			for _, l := range logs.All() {
				if strings.Contains(fmt.Sprint(l.ContextMap()["error"]), part) {
					return true
				}
			}
			return false
		}
	}
	require.Eventually(t, told("nats-tls-ca-file must be"), time.Minute, 5*time.Millisecond)
	require.False(t, nc.IsConnected())
	for _, name := range []string{"client/tls.key", "client/tls.pem", "ca.pem"} {
		replace(t, filepath.Join(later, name), filepath.Join(dir, name))
	}
	require.Eventually(t, told("do not know this user"), time.Minute, 5*time.Millisecond,
		"the certificates are good now, and the password is not")
	require.NoError(t, os.WriteFile(password, []byte("second"), 0o600))
	require.Eventually(t, nc.IsConnected, time.Minute, 5*time.Millisecond)
	require.NoError(t, nc.FlushTimeout(10*time.Second))
	require.Less(t, logs.Len(), 60, "what stays the same is said once")
}

func replace(t *testing.T, from, to string) {
	require.NoError(t, os.WriteFile(to+".new", must.Value(os.ReadFile(from))(t), 0o600))
	require.NoError(t, os.Rename(to+".new", to))
}

func TestX15_NATSSettingsAreChecked(t *testing.T) {
	for says, r := range map[string]natsd.Remote{
		"give nats-url":              {User: "quartet"},
		"or leave them out":          {TLS: certs.Files{CA: "ca.pem"}},
		"give one":                   {URL: "nats://a", User: "quartet", CredsFile: "x"},
		"three ways in":              {URL: "nats://a", NKeyFile: "x", CredsFile: "x"},
		"needs nats-user":            {URL: "nats://a", PasswordFile: "x"},
		"nats-tls-key-file go toget": {URL: "nats://a", TLS: certs.Files{Key: "x", Prefix: "nats-"}},
		"nats-url:":                  {URL: "nats://u:p@a:1:\x7f"},
	} {
		err := r.Check()
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "u:p")
	}
	require.NoError(t, natsd.Remote{}.Check())
	require.NoError(t, natsd.Remote{
		URL: "nats://a,nats://b", User: "u", PasswordFile: "x",
		TLS: certs.Files{CA: "c", Cert: "d", Key: "e"},
	}.Check())
}

// insideTrusting is set in the process of TestI10_NATSServersHaveStrongKeys that trusts the certificate with the short
// key.
const insideTrusting = "NATSD_TEST_TRUSTED"

// TestI10_NATSServersHaveStrongKeys connects without nats-tls settings, so that the system's authorities count, to a
// server with a short key, and TLS because the address or the server says so.
func TestI10_NATSServersHaveStrongKeys(t *testing.T) {
	if os.Getenv(insideTrusting) == "" {
		dir := t.TempDir()
		key := must.Value(rsa.GenerateKey(rand.Reader, 1024))(t)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		}
		der := must.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
		raw := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.pem"),
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestI10_NATSServersHaveStrongKeys$", "-test.v")
		cmd.Env = append(os.Environ(), insideTrusting+"="+dir, "SSL_CERT_FILE="+filepath.Join(dir, "tls.pem"),
			"SSL_CERT_DIR="+dir)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS")
		return
	}
	dir := os.Getenv(insideTrusting)
	address, _ := serveNATS(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, timeout: 5 }\n",
		filepath.Join(dir, "tls.pem"), filepath.Join(dir, "tls.key")))
	for _, scheme := range []string{"tls://", "nats://"} {
		conn, err := natsd.Remote{URL: strings.Replace(address, "nats://", scheme, 1)}.Connect(t.Context(), "test", nil)
		if conn != nil {
			conn.Close()
		}
		require.ErrorContains(t, err, "an RSA key has 1024 bits", scheme)
	}
}

func TestPasswordsStayOutOfMessages(t *testing.T) {
	for _, c := range [][3]string{
		{"connect to nats://u:p@h:1: refused", "nats://u:p@h:1", "connect to nats://…@h:1: refused"},
		{"x", "nats://h:1", "x"},
		{
			"nats://a:s3cret@h:1,nats://b:0ther@i:1 said s3cret", "nats://a:s3cret@h:1,nats://b:0ther@i:1",
			"nats://…@h:1,nats://…@i:1 said …",
		},
		{"nats://token@h:1", "nats://token@h:1", "nats://…@h:1"},
		{"dial u:s3cret@h:1, nats://u:s3cret@h:1: s3cret", "u:s3cret@h:1", "dial …@h:1, nats://…@h:1: …"},
		{"nats://a:s3cret@h:1, b:0ther@i:1", "nats://a:s3cret@h:1, b:0ther@i:1", "nats://…@h:1, …@i:1"},
		{"dial h:1", "h:1, i:1", "dial h:1"},
	} {
		require.Equal(t, c[2], natsd.Redact(c[0], c[1]))
	}
}
