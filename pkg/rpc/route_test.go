package rpc_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

var errLeft = errors.New("the partition was given up")

// held is one partition as an instance has it.
type held struct {
	agentv1.UnimplementedAgentServiceServer
	name string

	mu       sync.Mutex
	requests []string
	answer   func(ctx context.Context) error // before it answers; nil: nothing
}

// heldWork is a partition of another service of the same instance.
type heldWork struct {
	workv1.UnimplementedWorkServiceServer
	name string
}

func (h *heldWork) ListPendingAgents(context.Context, *workv1.ListPendingAgentsRequest) (
	*workv1.ListPendingAgentsResponse, error,
) {
	return &workv1.ListPendingAgentsResponse{NextPageToken: h.name}, nil
}

// register puts both services of a partition on an instance.
func (h *held) register(r grpc.ServiceRegistrar) {
	agentv1.RegisterAgentServiceServer(r, h)
	workv1.RegisterWorkServiceServer(r, &heldWork{name: h.name})
}

func (h *held) GetAgent(ctx context.Context, req *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	if h.answer != nil {
		if err := h.answer(ctx); err != nil {
			return nil, err
		}
	}
	return &agentv1.GetAgentResponse{Agent: &agentv1.Agent{AgentId: req.GetAgentId(), WorkspaceRoot: h.name}}, nil
}

func (h *held) SpawnAgent(ctx context.Context, req *agentv1.SpawnAgentRequest) (*agentv1.SpawnAgentResponse, error) {
	h.mu.Lock()
	h.requests = append(h.requests, req.GetRequestId())
	h.mu.Unlock()
	if h.answer != nil {
		if err := h.answer(ctx); err != nil {
			return nil, err
		}
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("x-by", h.name)); err != nil {
		return nil, err
	}
	return &agentv1.SpawnAgentResponse{Agent: &agentv1.Agent{AgentId: req.GetAgentId(), WorkspaceRoot: h.name}}, nil
}

func (h *held) WatchTurn(req *agentv1.WatchTurnRequest,
	out grpc.ServerStreamingServer[agentv1.WatchTurnResponse],
) error {
	if h.answer != nil {
		if err := h.answer(out.Context()); err != nil {
			return err
		}
	}
	for range 3 {
		if err := out.Send(&agentv1.WatchTurnResponse{
			Ended: &agentv1.Turn{AgentId: req.GetAgentId(), TurnId: h.name},
		}); err != nil {
			return err
		}
	}
	return nil
}

// town is two instances, at most one of which has each of two partitions.
type town struct {
	t       *testing.T
	keys    *rpc.Keyring
	mu      sync.Mutex
	where   [2]rpc.Place // as seen by both
	locals  map[string]*rpc.Instance
	changed chan struct{}
	addr    [2]string
	conn    [2]*grpc.ClientConn
}

// partitionOf: agents named a… are in 0, all others in 1.
func partitionOf(_, agent string) int {
	if agent != "" && agent[0] == 'a' {
		return 0
	}
	return 1
}

func newTown(t *testing.T) *town {
	w := &town{t: t, keys: rpc.NewKeyring(nil, false), changed: make(chan struct{}), locals: map[string]*rpc.Instance{}}
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "town"})
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	shape, err := rpc.NewInstance((&held{}).register)
	require.NoError(t, err)
	for i := range 2 {
		server := rpc.NewServer(rpc.Config{Auth: w.keys})
		rpc.Route(server, shape, rpc.Routes{
			Service: "agent", Size: func() int { return 2 }, Of: partitionOf,
			Search: []string{agentv1.AgentService_GetAgent_FullMethodName},
			Where: func(n int) (rpc.Place, <-chan struct{}) {
				w.mu.Lock()
				defer w.mu.Unlock()
				p := w.where[n]
				if p.Addr == w.addr[i] {
					p = rpc.Place{Local: w.locals[p.Name]}
				} else {
					p.Name = ""
				}
				return p, w.changed
			},
			Left:  func(err error) bool { return errors.Is(err, errLeft) },
			Peer:  func(addr, name string) grpc.ClientConnInterface { return network.Peer(addr, name) },
			NewID: id.New().New,
		})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		w.addr[i] = lis.Addr().String()
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		w.conn[i], err = grpc.NewClient(w.addr[i], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUnaryInterceptor(rpc.FaultsUnary), grpc.WithStreamInterceptor(rpc.FaultsStream))
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = w.conn[i].Close()
			server.Stop()
			require.NoError(t, <-served)
		})
	}
	return w
}

// give puts a partition to an instance.
func (w *town) give(n, instance int, h *held) *rpc.Instance {
	in, err := rpc.NewInstance(h.register)
	require.NoError(w.t, err)
	w.move(func() {
		w.locals[h.name] = in
		w.where[n] = rpc.Place{Addr: w.addr[instance], Name: h.name, Lives: w.where[n].Lives}
	})
	return in
}

func (w *town) move(how func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *town) as(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization",
		"Bearer "+w.keys.Mint(rpc.Actor{Namespace: "ns", Principal: "op", Role: rpc.RoleOperator}))
}

func (w *town) agents(i int) agentv1.AgentServiceClient {
	return agentv1.NewAgentServiceClient(w.conn[i])
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A call at any instance is executed by the holder of the partition, which the response names.
func TestR6_CallsReachTheHolder(t *testing.T) {
	w := newTown(t)
	w.give(0, 0, &held{name: "zero"})
	w.give(1, 1, &held{name: "one"})
	ctx := w.as(soon(t))
	for asked := range 2 {
		for agent, want := range map[string]string{"anna": "zero", "ben": "one"} {
			var header metadata.MD
			r, err := w.agents(asked).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: agent}, grpc.Header(&header))
			require.NoError(t, err)
			require.Equal(t, want, r.GetAgent().GetWorkspaceRoot())
			require.Equal(t, []string{want}, header.Get("x-by"), "headers come along")
			in, err := w.agents(asked).WatchTurn(ctx, &agentv1.WatchTurnRequest{AgentId: agent})
			require.NoError(t, err)
			n := 0
			for m, err := in.Recv(); err == nil; m, err = in.Recv() {
				require.Equal(t, want, m.GetEnded().GetTurnId())
				n++
			}
			require.Equal(t, 3, n)
		}
	}
	_, err := w.agents(0).SpawnAgent(soon(t), &agentv1.SpawnAgentRequest{AgentId: "ben"})
	require.ErrorIs(t, err, fault.Unauthenticated)
	for _, n := range []string{"2", "-1", "x"} {
		_, err := w.agents(0).SpawnAgent(metadata.AppendToOutgoingContext(ctx, "quartet-partition", n),
			&agentv1.SpawnAgentRequest{AgentId: "anna"})
		require.ErrorIs(t, err, fault.InvalidArgument, n)
	}
	_, err = w.agents(0).SpawnAgent(metadata.AppendToOutgoingContext(ctx, "quartet-partition", "1"),
		&agentv1.SpawnAgentRequest{AgentId: "ben"})
	require.ErrorIs(t, err, fault.PartitionMoved, "what was handed on is not handed on again")
}

// A call waits for a partition that is nowhere, and is repeated under one request
// id where its holder is lost: the next one can tell what was done.
func TestR6_CallsOutliveTheirHolder(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	for name, fails := range map[string]error{"given up": errLeft, "stopping": fault.NotReady.New("the service is " +
		"stopping")} {
		for holder := range 2 {
			asked := make(chan struct{})
			first, second := &held{name: "first"}, &held{name: "second"}
			first.answer = func(context.Context) error {
				w.move(func() { w.where[1] = rpc.Place{} })
				close(asked)
				return fails
			}
			w.give(1, holder, first)
			done := make(chan error, 1)
			go func() {
				r, err := w.agents(0).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "ben"})
				if err == nil && r.GetAgent().GetWorkspaceRoot() != "second" {
					err = errors.New("answered by " + r.GetAgent().GetWorkspaceRoot())
				}
				done <- err
			}()
			<-asked
			w.give(1, 1-holder, second)
			require.NoError(t, <-done, name)
			require.NotEmpty(t, first.requests[0])
			require.Equal(t, first.requests, second.requests, "the same request")
		}
	}
}

// Where the first holder may have executed a call, an error of the next one does not say that nothing was: the caller
// would make the call again as another request (seed 45 of the simulation).
func TestX1_ACallThatMayBeExecutedIsNotCalledUndone(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	for first, want := range map[string]string{"unknown": "unknown", "none": "none"} {
		for holder := range 2 {
			one, two := &held{name: "first"}, &held{name: "second"}
			two.answer = func(context.Context) error {
				return fault.Storage.New("the first answer could not be read back", "outcome", "none")
			}
			one.answer = func(context.Context) error {
				w.give(1, 1-holder, two)
				return fault.Storage.New("the journal stopped", "outcome", first).WithCause(errLeft)
			}
			w.give(1, holder, one)
			_, err := w.agents(0).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "ben"})
			require.ErrorIs(t, err, fault.Storage)
			require.Equal(t, want, fault.From(err).Metadata()["outcome"], "the first holder is %d, its outcome %s",
				holder, first)
			require.Equal(t, one.requests, two.requests)
		}
	}
}

// An instance that is frozen never answers; its callers do not wait for it longer
// than its session lasts.
func TestR6_AFrozenHolderIsGivenUp(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	lives, end := context.WithCancel(t.Context())
	asked := make(chan struct{}, 2)
	frozen := &held{name: "frozen", answer: func(ctx context.Context) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	w.give(1, 1, frozen)
	w.move(func() { w.where[1] = rpc.Place{Addr: w.where[1].Addr, Name: w.where[1].Name, Lives: lives} })
	done := make(chan error, 2)
	go func() {
		_, err := w.agents(0).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "ben"})
		done <- err
	}()
	go func() {
		in, err := w.agents(0).WatchTurn(ctx, &agentv1.WatchTurnRequest{AgentId: "ben"})
		if err == nil {
			_, err = in.Recv()
		}
		if errors.Is(err, fault.PartitionMoved) {
			err = nil // it is its client's to open again
		}
		done <- err
	}()
	<-asked
	<-asked
	w.move(func() { w.where[1] = rpc.Place{} })
	end()
	w.give(1, 0, &held{name: "other"})
	require.NoError(t, <-done)
	require.NoError(t, <-done)
}

// What does not say whose it is is looked for, here and elsewhere.
func TestR6_RequestsWithoutAnAgentAreSearched(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	no := func(context.Context) error { return fault.NotFound.New("not here") }
	w.give(0, 0, &held{name: "zero", answer: no})
	w.give(1, 1, &held{name: "one"})
	for asked := range 2 {
		r, err := w.agents(asked).GetAgent(ctx, &agentv1.GetAgentRequest{})
		require.NoError(t, err)
		require.Equal(t, "one", r.GetAgent().GetWorkspaceRoot())
	}
	w.give(1, 1, &held{name: "one", answer: no})
	_, err := w.agents(0).GetAgent(ctx, &agentv1.GetAgentRequest{})
	require.ErrorIs(t, err, fault.NotFound)
}

// A request that names a partition reaches its holder.
func TestR6_RequestsThatNameAPartition(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	w.give(0, 0, &held{name: "zero"})
	w.give(1, 1, &held{name: "one"})
	for asked := range 2 {
		works := workv1.NewWorkServiceClient(w.conn[asked])
		for n, want := range []string{"zero", "one"} {
			r, err := works.ListPendingAgents(ctx, &workv1.ListPendingAgentsRequest{Partition: int32(n)})
			require.NoError(t, err)
			require.Equal(t, want, r.GetNextPageToken())
		}
		for _, n := range []int32{-1, 2} {
			_, err := works.ListPendingAgents(ctx, &workv1.ListPendingAgentsRequest{Partition: n})
			require.ErrorIs(t, err, fault.InvalidArgument)
			require.Equal(t, "partition", fault.From(err).Violations()[0].Field)
			require.ErrorContains(t, err, "0 to 1")
		}
	}
}

// Who drains an instance waits for its calls, and those that come later find the
// next holder.
func TestR6_ADrainedInstanceLosesNoCall(t *testing.T) {
	w := newTown(t)
	ctx := w.as(soon(t))
	asked, let := make(chan struct{}), make(chan struct{})
	var first sync.Once
	old := w.give(1, 0, &held{name: "old", answer: func(context.Context) error {
		first.Do(func() { close(asked) })
		<-let
		return nil
	}})
	done := make(chan *agentv1.SpawnAgentResponse, 1)
	go func() {
		r, _ := w.agents(0).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "ben"})
		done <- r
	}()
	<-asked
	drained := make(chan struct{})
	go func() {
		old.Drain(ctx)
		close(drained)
	}()
	late := make(chan *agentv1.SpawnAgentResponse, 1)
	go func() {
		r, _ := w.agents(0).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "bob"})
		late <- r
	}()
	close(let)
	require.Equal(t, "old", (<-done).GetAgent().GetWorkspaceRoot())
	<-drained
	w.give(1, 1, &held{name: "new"})
	r := <-late
	require.Contains(t, []string{"old", "new"}, r.GetAgent().GetWorkspaceRoot())
	require.True(t, proto.Equal(&agentv1.Agent{AgentId: "bob", WorkspaceRoot: r.GetAgent().GetWorkspaceRoot()},
		r.GetAgent()))
}
