// Package certs loads the certificates of TLS connections from files, and reloads them when
// the files change, so that a certificate is renewed by replacing its files. While the files
// cannot be read, as in the middle of a renewal, the certificates read before stay in use.
//
// Owns: the TLS settings of servers and clients.
// Never does: create or renew certificates (pkg/authority).
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// lookAgain is the minimum time between two checks of the files, which are only made when a
// handshake needs the certificates.
const lookAgain = time.Second

// Files are paths of PEM files.
type Files struct {
	// Cert and Key are the certificate of this process, which it shows as a server, and as a client
	// to servers that ask for one.
	Cert, Key string
	// CA is the authority of the servers that are called; empty: the system's authorities.
	CA string
	// ClientCA is the authority of clients' certificates; empty: they are not verified.
	ClientCA string
	// RequireClient refuses clients without a certificate.
	RequireClient bool
	// Prefix is the prefix of the names of the settings in messages, such as nats-.
	Prefix string
}

// Check returns an error if the settings contradict each other.
func (f Files) Check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return fmt.Errorf("%[1]stls-cert-file and %[1]stls-key-file go together; give both or none", f.Prefix)
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("tls-client-ca-file needs a certificate of the server's own: give tls-cert-file and " +
			"tls-key-file")
	case f.RequireClient && f.ClientCA == "":
		return errors.New("tls-require-client-cert needs tls-client-ca-file, to know whose certificates are good")
	}
	return nil
}

// Store holds the contents of Files. It is safe for concurrent use.
type Store struct {
	files  Files
	logger *zap.Logger

	mu     sync.Mutex
	looked time.Time // when the files were last checked
	stamp  string    // sizes and times of the files whose contents are in now
	bad    string    // stamp of files that could not be read, so that this is logged only once
	now    contents
}

type contents struct {
	cert     *tls.Certificate
	roots    *x509.CertPool // nil: the system's
	clients  *x509.CertPool
	serverOf *tls.Config // of a server; nil without a certificate
}

// Open reads the files. It returns an error if one of them cannot be read, or if the settings
// contradict each other.
func Open(files Files, logger *zap.Logger) (*Store, error) {
	if logger == nil {
		logger = zap.NewNop()
	}
	s := &Store{files: files, logger: logger}
	if err := files.Check(); err != nil {
		return nil, err
	}
	var err error
	s.stamp = s.look()
	s.now, err = s.read()
	s.looked = time.Now()
	return s, err
}

// look returns the sizes and modification times of the files, as a text to compare.
func (s *Store) look() string {
	text := ""
	for _, path := range []string{s.files.Cert, s.files.Key, s.files.CA, s.files.ClientCA} {
		if path == "" {
			continue
		}
		if fi, err := os.Stat(path); err == nil { // through links, which renewals replace
			text += fmt.Sprintf("%d/%d ", fi.Size(), fi.ModTime().UnixNano())
		} else {
			text += "gone "
		}
	}
	return text
}

func (s *Store) read() (c contents, err error) {
	if s.files.Cert != "" {
		pair, err := tls.LoadX509KeyPair(s.files.Cert, s.files.Key)
		if err != nil {
			return c, fmt.Errorf("%[1]stls-cert-file %[2]s with %[1]stls-key-file %[3]s: %[4]w", s.files.Prefix,
				s.files.Cert, s.files.Key, err)
		}
		if err := strong(pair.Certificate); err != nil {
			return c, fmt.Errorf("%stls-cert-file %s: %w", s.files.Prefix, s.files.Cert, err)
		}
		c.cert = &pair
	}
	if c.roots, err = pool(s.files.Prefix+"tls-ca-file", s.files.CA); err != nil {
		return c, err
	}
	if c.clients, err = pool("tls-client-ca-file", s.files.ClientCA); err != nil {
		return c, err
	}
	if c.cert != nil {
		c.serverOf = &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*c.cert}, NextProtos: []string{
				"h2", "http/1.1",
			},
			VerifyConnection: VerifyPeer,
		}
		switch {
		case s.files.RequireClient:
			c.serverOf.ClientCAs, c.serverOf.ClientAuth = c.clients, tls.RequireAndVerifyClientCert
		case c.clients != nil:
			c.serverOf.ClientCAs, c.serverOf.ClientAuth = c.clients, tls.VerifyClientCertIfGiven
		}
	}
	return c, nil
}

func pool(setting, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s %s holds no certificate in PEM", setting, path)
	}
	var ders [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			ders = append(ders, block.Bytes)
		}
	}
	if err := strong(ders); err != nil {
		return nil, fmt.Errorf("%s %s: %w", setting, path, err)
	}
	return p, nil
}

// current returns the contents of the files, as of the last time that all could be read.
func (s *Store) current() contents {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) < lookAgain {
		return s.now
	}
	s.looked = time.Now()
	stamp := s.look()
	if stamp == s.stamp || stamp == s.bad {
		return s.now
	}
	c, err := s.read()
	if err != nil {
		s.bad = stamp
		s.logger.Warn("certificates changed and cannot be read; the ones from before stay in use", zap.Error(err))
		return s.now
	}
	s.now, s.stamp, s.bad = c, stamp, ""
	s.logger.Info("certificates were read again")
	return s.now
}

// Serves reports whether there is a certificate for servers.
func (s *Store) Serves() bool { return s != nil && s.files.Cert != "" }

// Mutual reports whether clients' certificates are verified.
func (s *Store) Mutual() bool { return s != nil && s.files.ClientCA != "" }

// Server returns the configuration of a listener: each handshake uses the current contents of the
// files. Files.Cert must be set.
func (s *Store) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current().serverOf, nil },
		// Not called, because GetConfigForClient always returns a configuration; Listen
		// requires one.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().cert, nil },
	}
}

// Client returns the configuration of one connection to a server, as of now.
func (s *Store) Client() *tls.Config {
	c := s.current()
	out := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, VerifyConnection: VerifyPeer}
	if c.cert != nil {
		out.Certificates = []tls.Certificate{*c.cert}
	}
	return out
}

// Transport returns the gRPC credentials of a client. Each connection uses the contents of
// the files as of its handshake.
func (s *Store) Transport() credentials.TransportCredentials {
	return dialing{s, credentials.NewTLS(s.Client())}
}

type dialing struct {
	store *Store
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials. It uses the current contents of the files.
func (d dialing) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo,
	error,
) {
	return credentials.NewTLS(d.store.Client()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials. The clone uses the same Store.
func (d dialing) Clone() credentials.TransportCredentials {
	return dialing{d.store, d.TransportCredentials.Clone()}
}
