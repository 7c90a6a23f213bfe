package backup

import (
	"cmp"
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	segments "quartet/pkg/journal/archive"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/keyfile"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
)

// Config says what is copied.
type Config struct {
	// Journals returns the streams of the journals.
	Journals func(ctx context.Context, js jetstream.JetStream) ([]string, error)
	// Output is the stream with the output of commands. It need not exist. Empty: there is none.
	Output string
	// Home is the directory of the agents' homes. It need not exist. Empty: there is none.
	Home string
	// Key returns the installation's active key, which authenticates every backup and encrypts those
	// that are made for no recipients. Required.
	Key func() keyfile.Key
	// Version is the version of this build, for the manifest.
	Version string
}

// Deps is what the service needs of its process.
type Deps struct {
	// Conn returns the connection to the broker. It is called for each backup.
	Conn func() *nats.Conn
	// Partitions returns how many partitions each plane has, by plane. nil: each plane has one.
	Partitions func() map[string]int
	// Archive returns the archive of a partition; nil: there is none.
	Archive func(plane string, partition int) (segments.Store, error)
	// Snapshots returns the store of the snapshots of a partition. A backup has the snapshots of partitions from
	// whose journals old events were removed. nil: there are none.
	Snapshots func(plane string, partition int) (snapshot.Store, error)
	// Record records an export in the audit log before it begins; nil: it is not recorded.
	Record func(ctx context.Context, method string, req proto.Message) (ended func(err error), err error)
	Logger *zap.Logger
}

// Service is BackupService.
type Service struct {
	backupv1.UnsafeBackupServiceServer

	cfg  Config
	deps Deps
}

// New checks that cfg and deps are complete.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Journals == nil || cfg.Key == nil || deps.Conn == nil {
		return nil, errors.New("backup: Journals, Key and Deps.Conn are needed")
	}
	deps.Logger = cmp.Or(deps.Logger, zap.NewNop())
	return &Service{cfg: cfg, deps: deps}, nil
}

// Name returns the module's name.
func (s *Service) Name() string { return "backup" }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) { backupv1.RegisterBackupServiceServer(srv, s) }

// Start has nothing to open.
func (s *Service) Start(context.Context) error { return nil }

// Stop has nothing to close: a backup that is being made ends when the stream of its call ends.
func (s *Service) Stop(context.Context) error { return nil }

// Ready returns nil: a backup without a broker returns its own error.
func (s *Service) Ready() error { return nil }
