package app

import (
	"crypto/tls"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"quartet/pkg/certs"
)

// transports holds the TLS of a process's connections. The zero value is plain text.
type transports struct {
	serve  credentials.TransportCredentials // for grpc-addr
	dial   credentials.TransportCredentials // for connections to other processes
	http   *tls.Config                      // for http-addr
	mutual bool                             // services present certificates to each other
}

// openTLS reads the certificate files and returns the TLS of this process's connections. No
// files mean plain text. Without a certificate of its own, the process uses TLS only for the
// connections that it makes.
func openTLS(files certs.Files, logger *zap.Logger) (s transports, err error) {
	if files == (certs.Files{}) {
		return s, nil
	}
	store, err := certs.Open(files, logger)
	if err != nil {
		return s, err
	}
	s.dial, s.mutual = store.Transport(), store.Mutual()
	if store.Serves() {
		s.serve, s.http = credentials.NewTLS(store.Server()), store.Server()
	}
	return s, nil
}

// scheme returns the URL scheme of the gateway, http or https.
func (a *App) scheme() string {
	if a.cfg.TLS.Cert != "" {
		return "https"
	}
	return "http"
}
