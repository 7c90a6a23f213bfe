// Package certs gives TLS its certificates out of files, and reads those again
// when they change: whoever renews a certificate replaces the files and does
// nothing else. What cannot be read, such as half of a renewal, leaves what was
// there before in place.
//
// Owns: the TLS settings of servers and clients.
// Never does: make or renew certificates.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// lookAgain is how often, at most, files are looked at: by handshakes, and only
// by them.
const lookAgain = time.Second

// Files are paths of PEM files.
type Files struct {
	// Cert and Key are who we are: to clients, and to servers that ask.
	Cert, Key string
	// CA signs the servers that we call; empty: the system's authorities.
	CA string
	// ClientCA signs the clients whose certificates we look at; empty: we do not.
	ClientCA string
	// RequireClient refuses clients without one.
	RequireClient bool
	// Prefix stands before the names of these settings in messages, as in nats-.
	Prefix string
}

// Check says what does not go together.
func (f Files) Check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return fmt.Errorf("%[1]stls-cert-file and %[1]stls-key-file go together; give both or none", f.Prefix)
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("tls-client-ca-file needs a certificate of the server's own: give tls-cert-file and tls-key-file")
	case f.RequireClient && f.ClientCA == "":
		return errors.New("tls-require-client-cert needs tls-client-ca-file, to know whose certificates are good")
	}
	return nil
}

// Store is the contents of Files. It is safe for concurrent use.
type Store struct {
	files  Files
	logger *zap.Logger

	mu     sync.Mutex
	looked time.Time
	stamp  string // sizes and times of the files as read
	bad    string // stamp of what could not be read, so that it is told once
	now    contents
}

type contents struct {
	cert     *tls.Certificate
	roots    *x509.CertPool // nil: the system's
	clients  *x509.CertPool
	serverOf *tls.Config
}

// Open reads the files.
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

// look is what the files look like from outside.
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
			return c, fmt.Errorf("%[1]stls-cert-file %[2]s with %[1]stls-key-file %[3]s: %[4]w", s.files.Prefix, s.files.Cert, s.files.Key, err)
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
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*c.cert}, NextProtos: []string{"h2", "http/1.1"},
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
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s %s holds no certificate in PEM", setting, path)
	}
	return p, nil
}

// current is what is in the files now, or was in them when they could last be
// read.
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

// Serves reports whether there is a certificate to serve with.
func (s *Store) Serves() bool { return s != nil && s.files.Cert != "" }

// Mutual reports whether clients' certificates are looked at.
func (s *Store) Mutual() bool { return s != nil && s.files.ClientCA != "" }

// Server is the configuration of a listener.
func (s *Store) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current().serverOf, nil },
		// Never asked, since the above always answers; there must be one.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().cert, nil },
	}
}

// Client is the configuration of one connection to a server.
func (s *Store) Client() *tls.Config {
	c := s.current()
	out := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots}
	if c.cert != nil {
		out.Certificates = []tls.Certificate{*c.cert}
	}
	return out
}

// Transport are gRPC's credentials of a client whose every connection takes the
// files as they are then.
func (s *Store) Transport() credentials.TransportCredentials {
	return dialing{s, credentials.NewTLS(s.Client())}
}

type dialing struct {
	store *Store
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (d dialing) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(d.store.Client()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (d dialing) Clone() credentials.TransportCredentials {
	return dialing{d.store, d.TransportCredentials.Clone()}
}
