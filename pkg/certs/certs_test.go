package certs

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/authority"
	"quartet/pkg/must"
)

// issued returns the files of a certificate for localhost, of an authority of its own.
func issued(t *testing.T) Files {
	t.Helper()
	dir := t.TempDir()
	a := must.Value(authority.Open(authority.Config{Dir: dir, Owner: -1, Group: -1}))(t)
	must.Value(a.Issue("server", []string{"localhost"}))(t)
	return Files{
		Cert: filepath.Join(dir, "server", "tls.pem"), Key: filepath.Join(dir, "server", "tls.key"),
		CA: filepath.Join(dir, "ca.pem"),
	}
}

// replace gives the files the content of others, as a renewal does.
func replace(t *testing.T, files, by Files) {
	t.Helper()
	for to, from := range map[string]string{files.Cert: by.Cert, files.Key: by.Key, files.CA: by.CA} {
		require.NoError(t, os.WriteFile(to, must.Value(os.ReadFile(from))(t), 0o600))
	}
}

// served returns the certificate that the server's handshake shows, and the errors of both
// sides.
func served(t *testing.T, server, client *tls.Config) (shown *x509.Certificate, serverErr, clientErr error) {
	t.Helper()
	l := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		s := tls.Server(conn, server)
		err = s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
	}()
	conn := must.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	client = client.Clone()
	client.ServerName = "localhost"
	c := tls.Client(conn, client)
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1)) // TLS 1.3 refuses a client's certificate after the handshake
		shown = c.ConnectionState().PeerCertificates[0]
	}
	return shown, <-done, clientErr
}

func TestCheckFindsContradictions(t *testing.T) {
	for _, good := range []Files{
		{},
		{CA: "ca"},
		{Cert: "c", Key: "k"},
		{Cert: "c", Key: "k", ClientCA: "ca", RequireClient: true},
	} {
		require.NoError(t, good.Check(), "%+v", good)
	}
	for want, bad := range map[string]Files{
		"nats-tls-cert-file and nats-tls-key-file go together": {Cert: "c", Prefix: "nats-"},
		"tls-cert-file and tls-key-file go together":           {Key: "k"},
		"needs a certificate of the server's own":              {ClientCA: "ca"},
		"needs tls-client-ca-file":                             {Cert: "c", Key: "k", RequireClient: true},
	} {
		require.ErrorContains(t, bad.Check(), want)
		must.Fail(Open(bad, nil))(t, want)
	}
}

func TestOpenNamesTheFileThatCannotBeRead(t *testing.T) {
	f := issued(t)
	none := f
	none.Cert = filepath.Join(t.TempDir(), "none.pem")
	must.Fail(Open(none, nil))(t, none.Cert)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, []byte("no PEM"), 0o600))
	for _, bad := range []Files{{CA: empty}, {Cert: f.Cert, Key: f.Key, ClientCA: empty}} {
		must.Fail(Open(bad, nil))(t, empty+" holds no certificate")
	}
}

func TestClientsAreChecked(t *testing.T) {
	f := issued(t)
	mutual := f
	mutual.ClientCA, mutual.RequireClient = f.CA, true
	server := must.Value(Open(mutual, nil))(t)
	require.True(t, server.Serves())
	require.True(t, server.Mutual())
	client := must.Value(Open(f, nil))(t)
	require.False(t, client.Mutual())
	_, serverErr, clientErr := served(t, server.Server(), client.Client())
	require.NoError(t, serverErr)
	require.NoError(t, clientErr)

	bare := must.Value(Open(Files{CA: f.CA}, nil))(t)
	require.False(t, bare.Serves())
	_, serverErr, clientErr = served(t, server.Server(), bare.Client())
	require.Error(t, serverErr, "without a certificate")
	require.Error(t, clientErr)

	stranger := issued(t)
	foreign := must.Value(Open(Files{CA: f.CA, Cert: stranger.Cert, Key: stranger.Key}, nil))(t)
	_, serverErr, _ = served(t, server.Server(), foreign.Client())
	require.Error(t, serverErr, "with one of another authority")

	mutual.RequireClient = false
	optional := must.Value(Open(mutual, nil))(t)
	_, serverErr, clientErr = served(t, optional.Server(), bare.Client())
	require.NoError(t, serverErr)
	require.NoError(t, clientErr)
	_, serverErr, _ = served(t, optional.Server(), foreign.Client())
	require.Error(t, serverErr, "a certificate that is given is verified")
	var none *Store
	require.False(t, none.Serves())
	require.False(t, none.Mutual())
}

func TestARenewalIsServedWithoutARestart(t *testing.T) {
	f, renewed := issued(t), issued(t)
	core, logs := observer.New(zapcore.InfoLevel)
	server := must.Value(Open(f, zap.New(core)))(t)
	config := server.Server() // made once, as a listener does
	serial := func(ca string) string {
		t.Helper()
		server.mu.Lock()
		server.looked = time.Time{} // as if a second had passed
		server.mu.Unlock()
		client := must.Value(Open(Files{CA: ca}, nil))(t)
		shown, serverErr, clientErr := served(t, config, client.Client())
		require.NoError(t, serverErr)
		require.NoError(t, clientErr)
		return shown.SerialNumber.String()
	}
	oldCA := filepath.Join(t.TempDir(), "old.pem")
	require.NoError(t, os.WriteFile(oldCA, must.Value(os.ReadFile(f.CA))(t), 0o600))
	first := serial(oldCA)
	require.Equal(t, first, serial(oldCA))

	require.NoError(t, os.WriteFile(f.Key, []byte("half of a renewal"), 0o600))
	require.Equal(t, first, serial(oldCA), "files that cannot be read leave the certificate as it was")
	require.Equal(t, first, serial(oldCA))
	require.Len(t, logs.FilterLevelExact(zapcore.WarnLevel).All(), 1, "and are logged once")

	replace(t, f, renewed)
	second := serial(renewed.CA)
	require.NotEqual(t, first, second)
}
