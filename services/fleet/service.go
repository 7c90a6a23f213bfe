package fleet

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
)

// Agents is the part of the agent plane that the index reads.
type Agents interface {
	GetFacts(ctx context.Context, in *agentv1.GetFactsRequest, opts ...grpc.CallOption) (*agentv1.GetFactsResponse,
		error)
	GetAgent(ctx context.Context, in *agentv1.GetAgentRequest, opts ...grpc.CallOption) (*agentv1.GetAgentResponse,
		error)
}

// Boards is the part of the board plane that the index reads.
type Boards interface {
	ListBoards(ctx context.Context, in *boardv1.ListBoardsRequest, opts ...grpc.CallOption) (
		*boardv1.ListBoardsResponse, error)
}

// Deps is what the service needs of its process and of other planes.
type Deps struct {
	// Sources returns the journals of a plane's partitions, which the index follows.
	Sources func(plane string) ([]journal.Source, error)
	Agents  Agents
	Boards  Boards
	Clock   clock.Clock
	Logger  *zap.Logger
}

// keptFor is how long the index is kept after the last call.
const keptFor = 10 * time.Minute

// Service serves FleetService.
type Service struct {
	fleetv1.UnsafeFleetServiceServer

	deps Deps

	mu      sync.Mutex
	index   *index    // nil until a call, and after it has expired
	used    time.Time // when the last call arrived
	stopped bool
}

// New returns a Service. Nothing is read before the first call.
func New(deps Deps) (*Service, error) {
	if deps.Sources == nil || deps.Agents == nil || deps.Boards == nil {
		return nil, errors.New("fleet: Deps needs Sources, Agents and Boards")
	}
	deps.Clock = cmp.Or(deps.Clock, clock.System())
	deps.Logger = cmp.Or(deps.Logger, zap.NewNop())
	return &Service{deps: deps}, nil
}

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) { fleetv1.RegisterFleetServiceServer(srv, s) }

// Stop ends the index. Later calls return NOT_READY. It is idempotent.
func (s *Service) Stop() {
	s.mu.Lock()
	x := s.index
	s.index, s.stopped = nil, true
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
}

// current returns the index, which it creates if there is none. It returns NOT_READY after Stop.
func (s *Service) current(ctx context.Context) (*index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, fault.NotReady.New("the server stops; repeat the call at another one, or in a moment")
	}
	s.used = s.deps.Clock.Now()
	if s.index == nil {
		x, err := begin(ctx, s.deps, s.expired)
		if err != nil {
			return nil, fault.NotReady.New("the journals cannot be read now; repeat the call in a moment").
				WithCause(err)
		}
		s.index = x
	}
	return s.index, nil
}

// expired ends x if no call has used it for keptFor. It reports whether x has ended or is not the current index any
// more.
func (s *Service) expired(x *index) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != x || s.deps.Clock.Now().Sub(s.used) < keptFor {
		return s.index != x
	}
	s.index = nil
	x.stop()
	return true
}
