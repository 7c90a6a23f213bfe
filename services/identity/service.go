package identity

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// Deps are what the plane needs of its process.
type Deps struct {
	plane.Deps
	// Installation has the installation's keys, from which the secrets of API keys follow.
	Installation *keyfile.Source
	// Known waits until this process accepts a new key, so that the caller who
	// created it can use it here at once.
	Known func(ctx context.Context, keyID string)
	// Processes returns the server processes of the installation that run, and with examine whether everything is
	// served.
	Processes func(ctx context.Context, examine bool) (*identityv1.ListProcessesResponse, error)
	// Usage returns the quotas of a namespace, and how much of them it uses.
	Usage func(ctx context.Context, namespace string) ([]*identityv1.QuotaUse, error)
	// Largest returns the namespaces that hold most, and how many there are.
	Largest func(ctx context.Context) ([]*identityv1.NamespaceUse, int, error)
	// Version is the build's.
	Version string
}

// Service is the identity plane.
type Service struct {
	identityv1.UnsafeIdentityServiceServer

	deps   Deps
	engine *plane.Engine[*State]
}

// New validates the dependencies. It opens nothing; see Start.
func New(deps Deps) (*Service, error) {
	if deps.Installation == nil || deps.Known == nil || deps.Processes == nil || deps.Usage == nil ||
		deps.Largest == nil {
		return nil, errors.New("identity: Deps needs Installation, Known, Processes, Usage and Largest")
	}
	err := deps.Complete()
	return &Service{deps: deps}, err
}

// Name implements life.Service.
func (s *Service) Name() string { return Plane }

// Register registers the plane's gRPC service.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	identityv1.RegisterIdentityServiceServer(srv, s)
}

// Start opens the journal. It has one partition, because keys are few and lists cover all
// namespaces.
func (s *Service) Start(ctx context.Context) error {
	engine, err := plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, New: NewState, Events: identityv1.File_quartet_identity_v1_identity_event_proto,
	}, s.deps.Deps)
	s.engine = engine
	return err
}

// Stop closes the journal. It is idempotent.
func (s *Service) Stop(ctx context.Context) error {
	if s.engine == nil {
		return nil
	}
	return s.engine.Close(ctx)
}

// Ready returns nil while the journal is open and can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns for how long the journal has been unable to write, 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
