package app

import (
	"crypto/tls"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"quartet/pkg/certs"
)

// secured is how a process's connections are; the zero value is plain text.
type secured struct {
	serve  credentials.TransportCredentials // of grpc-addr
	dial   credentials.TransportCredentials // to services elsewhere
	http   *tls.Config                      // of http-addr
	mutual bool                             // services show certificates to each other
}

func openTLS(files certs.Files, logger *zap.Logger) (s secured, err error) {
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

// scheme is that of the gateway's addresses.
func (a *App) scheme() string {
	if a.cfg.TLS.Cert != "" {
		return "https"
	}
	return "http"
}
