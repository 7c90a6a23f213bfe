package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
	"quartet/tests/proc"
)

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
	made int64
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir()}
	a.key = must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))(t)
	a.cert = must.Value(x509.ParseCertificate(der))(t)
	a.file = filepath.Join(a.dir, "ca.pem")
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	// Replaced as renewals do it: whoever reads has the old file or the new one.
	require.NoError(t, os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// issue writes a certificate for loopback under a name; the same name again
// renews it. It gives the files and the serial number.
func (a *authority) issue(t *testing.T, name string) (certFile, keyFile string, serial int64) {
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	a.made++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(100 + a.made), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().
				Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth,
		},
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key))(t)
	raw := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(t, keyFile, "PRIVATE KEY", raw)
	writePEM(t, certFile, "CERTIFICATE", der)
	return certFile, keyFile, template.SerialNumber.Int64()
}

// trust returns a client's configuration, with a certificate if files are given.
func (a *authority) trust(t *testing.T, certAndKey ...string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	cfg := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if len(certAndKey) == 2 {
		cfg.Certificates = []tls.Certificate{must.Value(tls.LoadX509KeyPair(certAndKey[0], certAndKey[1]))(t)}
	}
	return cfg
}

// shaken is what an HTTPS call showed.
type shaken struct {
	status int
	proto  string
	serial int64 // of the server's certificate
}

// https calls the gateway; the connection is not kept.
func (h *house) https(t *testing.T, cfg *tls.Config, token string) (shaken, error) {
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(soon(t), http.MethodGet, "https://"+h.cfg.HTTPAddr+"/v1/whoami", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return shaken{}, err
	}
	defer resp.Body.Close()
	return shaken{resp.StatusCode, resp.Proto, resp.TLS.PeerCertificates[0].SerialNumber.Int64()}, nil
}

func (h *house) who(t *testing.T, cfg *tls.Config, token string) error {
	return must.Err(identityv1.NewIdentityServiceClient(h.conn(t, token, client.WithTLS(cfg))).
		WhoAmI(soon(t), &identityv1.WhoAmIRequest{}))
}

// TestX15_TLSAtTheEdges: both edges speak TLS with the configured certificate,
// and take a renewed one without a restart.
func TestX15_TLSAtTheEdges(t *testing.T) {
	proc.Long(t)
	ca, stranger := newAuthority(t, "ours"), newAuthority(t, "another")
	certFile, keyFile, serial := ca.issue(t, "server")
	h := newHouse(t, func(cfg *app.Config) { cfg.TLS.Cert, cfg.TLS.Key = certFile, keyFile })
	cfg := ca.trust(t)
	require.NoError(t, h.who(t, cfg, bootstrap))
	resp := must.Value(h.https(t, cfg, bootstrap))(t)
	require.Equal(t, http.StatusOK, resp.status)
	require.Equal(t, serial, resp.serial)
	require.Equal(t, "HTTP/2.0", resp.proto)
	must.Fail(h.https(t, stranger.trust(t), bootstrap))(t, "unknown authority")
	require.ErrorIs(t, h.who(t, stranger.trust(t), bootstrap), fault.NotReady)
	_, err := h.identity(t, bootstrap).WhoAmI(soon(t), &identityv1.WhoAmIRequest{})
	require.Error(t, err, "plain text is not answered")

	// Half of a renewal, and nonsense, change nothing.
	require.NoError(t, os.WriteFile(certFile, []byte("nonsense"), 0o600))
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // longer than files go unread
		require.Equal(t, serial, must.Value(h.https(t, cfg, bootstrap))(t).serial)
	}
	_, _, renewed := ca.issue(t, "server")
	require.NotEqual(t, serial, renewed)
	require.Eventually(t, func() bool {
		resp := must.Value(h.https(t, cfg, bootstrap))(t, "there is never no certificate")
		return resp.serial == renewed
	}, eventually, tick)
	require.NoError(t, h.who(t, cfg, bootstrap))
}

// TestX15_ClientsShowCertificates where they must.
func TestX15_ClientsShowCertificates(t *testing.T) {
	ca, stranger := newAuthority(t, "ours"), newAuthority(t, "another")
	certFile, keyFile, _ := ca.issue(t, "server")
	ownCert, ownKey, _ := ca.issue(t, "client")
	badCert, badKey, _ := stranger.issue(t, "client")
	h := newHouse(t, func(cfg *app.Config) {
		cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA, cfg.TLS.RequireClient = certFile, keyFile, ca.file, true
	})
	require.NoError(t, h.who(t, ca.trust(t, ownCert, ownKey), bootstrap))
	require.ErrorIs(t, h.who(t, ca.trust(t, ownCert, ownKey), "nonsense"), fault.Unauthenticated,
		"a certificate is no credential")
	for name, cfg := range map[string]*tls.Config{"none": ca.trust(t), "a stranger's": ca.trust(t, badCert, badKey)} {
		require.ErrorIs(t, h.who(t, cfg, bootstrap), fault.NotReady, name)
		require.Error(t, must.Err(h.https(t, cfg, bootstrap)), name)
	}
}

// TestX15_ServicesKnowEachOtherByCertificates: with tls-client-ca-file a service's
// token alone opens nothing, and services with certificates work as before.
func TestX15_ServicesKnowEachOtherByCertificates(t *testing.T) {
	proc.Long(t)
	ca := newAuthority(t, "ours")
	certFile, keyFile, _ := ca.issue(t, "service")
	ownCert, ownKey, _ := ca.issue(t, "client")
	planes, door := twoDoorsWith(t, func(cfg *app.Config) {
		cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, cfg.TLS.ClientCA = certFile, keyFile, ca.file, ca.file
	})
	_, err := identityv1.NewIdentityServiceClient(planes.conn(t, bootstrap, client.WithTLS(ca.trust(t)))).
		CreateKey(soon(t), &identityv1.CreateKeyRequest{Name: "root", Role: identityv1.Role_ROLE_ADMIN})
	require.NoError(t, err, "people need no certificate")
	service := door.minted(t, rpc.Actor{Namespace: "default", Principal: "quartet", Role: rpc.RoleService})
	require.ErrorIs(t, planes.who(t, ca.trust(t), service), fault.Unauthenticated,
		"a service's token without a certificate")
	require.NoError(t, planes.who(t, ca.trust(t, ownCert, ownKey), service))
	refused := must.Value(door.https(t, ca.trust(t, ownCert, ownKey), service))(t)
	require.Equal(t, http.StatusUnauthorized, refused.status, "nor by the back door of REST")
	// Through the gateway, whose process is another.
	made := must.Value(identityv1.NewIdentityServiceClient(planes.conn(t, bootstrap, client.WithTLS(ca.trust(t)))).
		CreateKey(soon(t), &identityv1.CreateKeyRequest{Name: "ci", Role: operator}))(t)
	require.Equal(t, http.StatusOK, must.Value(door.https(t, ca.trust(t), made.GetSecret()))(t).status)
}

// TestX15_TheCommandLineSpeaksTLS, with the real binary.
func TestX15_TheCommandLineSpeaksTLS(t *testing.T) {
	ca := newAuthority(t, "ours")
	certFile, keyFile, _ := ca.issue(t, "server")
	h := newHouse(t, func(cfg *app.Config) { cfg.TLS.Cert, cfg.TLS.Key = certFile, keyFile })
	bin := binary(t)
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(soon(t), bin, append(args, "--address", h.cfg.GRPCAddr, "--token", bootstrap)...)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	out, err := run("whoami", "--tls-ca-file", ca.file)
	require.NoError(t, err, out)
	require.Equal(t, "bootstrap, installation_admin of namespace default", out)
	out, err = run("whoami", "--tls")
	require.Error(t, err)
	require.Contains(t, out, "authority")
	out, err = run("whoami", "--tls-cert-file", certFile)
	require.Error(t, err)
	require.Contains(t, out, "go together")
}

// TestX15_TLSSettingsAreChecked before anything starts.
func TestX15_TLSSettingsAreChecked(t *testing.T) {
	ca := newAuthority(t, "ours")
	certFile, keyFile, _ := ca.issue(t, "server")
	_, otherKey, _ := ca.issue(t, "other")
	for says, change := range map[string]func(cfg *app.Config){
		"go together":         func(cfg *app.Config) { cfg.TLS.Cert = certFile },
		"needs a certificate": func(cfg *app.Config) { cfg.TLS.ClientCA = ca.file },
		"needs tls-client-ca-file": func(cfg *app.Config) {
			cfg.TLS.Cert, cfg.TLS.Key,
				cfg.TLS.RequireClient = certFile, keyFile, true
		},
		"does not match":              func(cfg *app.Config) { cfg.TLS.Cert, cfg.TLS.Key = certFile, otherKey },
		"no such file":                func(cfg *app.Config) { cfg.TLS.Cert, cfg.TLS.Key = certFile+"x", keyFile },
		"holds no certificate in PEM": func(cfg *app.Config) { cfg.TLS.CA = keyFile },
	} {
		cfg := app.Config{DataDir: t.TempDir(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}
		change(&cfg)
		must.Fail(app.New(cfg, nil, "test"))(t, says)
	}
}
