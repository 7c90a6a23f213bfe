package identity

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// Deps is what this plane needs of its process.
type Deps struct {
	plane.Deps
	// Secret gives the secret that follows from a key's id (see Secrets).
	Secret func(keyID string) string
	// Known waits until this process lets a new key in, so that whoever was just
	// given one can use it here at once. Optional.
	Known func(ctx context.Context, keyID string)
	// Version is the build's.
	Version string
}

// Service is the identity plane.
type Service struct {
	identityv1.UnimplementedIdentityServiceServer

	deps   Deps
	engine *plane.Engine[*State]
}

// New completes the dependencies. Nothing is opened before Start.
func New(deps Deps) (*Service, error) {
	if deps.Secret == nil {
		return nil, errors.New("identity: Deps needs Secret")
	}
	if deps.Known == nil {
		deps.Known = func(context.Context, string) {}
	}
	err := deps.Complete()
	return &Service{deps: deps}, err
}

// Name is the module's name.
func (s *Service) Name() string { return Plane }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	identityv1.RegisterIdentityServiceServer(srv, s)
}

// Start opens the journal. It has one partition: keys are few, and lists are of
// all namespaces.
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

// Ready is nil once the journal is open and while it can be written.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled is how long the journal has been unable to write.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
