package certs

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// signed writes a certificate for localhost with an RSA key of some bits, signed by itself.
func signed(t *testing.T, bits int) Files {
	t.Helper()
	key := must.Value(rsa.GenerateKey(rand.Reader, bits))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(bits)), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames:  []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		},
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	raw := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	f := Files{Cert: filepath.Join(t.TempDir(), "tls.pem"), Key: filepath.Join(t.TempDir(), "tls.key")}
	f.CA = f.Cert
	require.NoError(t, os.WriteFile(f.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	return f
}

// Each certificate that is loaded has a key of 2 048 bits if it is RSA.
func TestI10_ShortRSAKeysAreNotLoaded(t *testing.T) {
	good := issued(t)
	for bits, ok := range map[int]bool{1024: false, 2047: false, 2048: true, 2056: true} {
		f := signed(t, bits)
		for setting, files := range map[string]Files{
			"nats-tls-cert-file": {Cert: f.Cert, Key: f.Key, Prefix: "nats-"}, "tls-ca-file": {CA: f.CA},
			"tls-client-ca-file": {Cert: good.Cert, Key: good.Key, ClientCA: f.CA},
		} {
			_, err := Open(files, nil)
			if ok {
				require.NoError(t, err, "%s %d", setting, bits)
				continue
			}
			require.ErrorContains(t, err, setting+" "+f.Cert, bits)
			require.ErrorContains(t, err, "it must have at least 2048")
			require.ErrorContains(t, err, "localhost")
		}
	}
}

// A peer that shows one is refused, also where the authority is not loaded here.
func TestI10_ShortRSAKeysOfPeersAreRefused(t *testing.T) {
	weak, good := signed(t, 1024), issued(t)
	pair := must.Value(tls.LoadX509KeyPair(weak.Cert, weak.Key))(t)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(must.Value(os.ReadFile(weak.Cert))(t)))

	client := must.Value(Open(good, nil))(t)
	trusting := client.Client()
	trusting.RootCAs = roots
	_, _, err := served(t, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, trusting)
	require.ErrorContains(t, err, "an RSA key has 1024 bits")

	asking := must.Value(Open(good, nil))(t).current().serverOf.Clone()
	asking.ClientCAs, asking.ClientAuth = roots, tls.RequireAndVerifyClientCert
	showing := client.Client()
	showing.Certificates = []tls.Certificate{pair}
	_, err, _ = served(t, asking, showing)
	require.ErrorContains(t, err, "an RSA key has 1024 bits")
}

func TestCheckKey(t *testing.T) {
	for bits, ok := range map[int]bool{2047: false, 2048: true, 2049: true} {
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		require.Equal(t, ok, CheckKey(&rsa.PublicKey{N: n, E: 65537}) == nil, bits)
	}
	require.NoError(t, CheckKey(crypto.PublicKey(nil)))
}
