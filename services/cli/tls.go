package cli

import (
	"google.golang.org/grpc"

	"quartet/pkg/certs"
	"quartet/pkg/client"
)

// secured is how to connect.
type secured struct {
	on    bool
	files certs.Files
}

// options are those of a connection; none: plain text, as on loopback.
func (s *secured) options() ([]client.Option, error) {
	if !s.given() {
		return nil, nil
	}
	store, err := certs.Open(s.files, nil)
	if err != nil {
		return nil, err
	}
	// The last one counts, and it reads the files again when they change, for
	// workers and runners that run for months.
	return []client.Option{client.WithGRPC(grpc.WithTransportCredentials(store.Transport()))}, nil
}

func (s *secured) given() bool { return s.on || s.files != (certs.Files{}) }
