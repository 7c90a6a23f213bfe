package audit

import (
	"context"
	"time"

	"google.golang.org/grpc"

	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/plane"
)

// Service is the audit plane.
type Service struct {
	auditv1.UnsafeAuditServiceServer

	deps   plane.Deps
	engine *plane.Engine[*State]
}

// New validates the dependencies. It opens nothing; see Start.
func New(deps plane.Deps) (*Service, error) {
	err := deps.Complete()
	return &Service{deps: deps}, err
}

// Name returns Plane.
func (s *Service) Name() string { return Plane }

// Register registers the plane's gRPC service.
func (s *Service) Register(srv grpc.ServiceRegistrar) { auditv1.RegisterAuditServiceServer(srv, s) }

// Start opens the journal. It has one partition, so that the entries of an installation are one
// chain.
func (s *Service) Start(ctx context.Context) error {
	engine, err := plane.Open(ctx, plane.Config[*State]{
		Plane: Plane, New: NewState, Events: auditv1.File_quartet_audit_v1_audit_event_proto,
	}, s.deps)
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

// Ready returns nil while the journal is open and can be written. Start must have succeeded.
func (s *Service) Ready() error { return s.engine.Ready() }

// Stalled returns for how long the journal has been unable to write, 0 while it can.
func (s *Service) Stalled() time.Duration { return s.engine.Stalled() }
