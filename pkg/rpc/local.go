package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
)

// Server is a gRPC server whose methods this process also calls without HTTP/2: the
// caller's goroutine runs the interceptors and the handler of a unary method, and a stream (see pipe)
// is a pair of channels.
// Over a pipe in memory a call changes goroutines six times, which on an idle
// machine costs 100-300 µs, and a trigger takes up to six such calls until a
// runner holds its turn.
//
// The call is the same otherwise: messages are encoded, and actor, metadata and errors are those of
// the wire. But the handler's context is derived from the caller's, so it also ends with that, and
// other values of the caller's context are visible in it.
type Server struct {
	*grpc.Server
	*server
	methods  map[string]localMethod
	streamed map[string]localStreamMethod

	// live ends when running calls must be cancelled.
	live   context.Context //nolint:containedctx // not a request's: the server's own life
	giveUp context.CancelFunc
	mu     sync.RWMutex
	closed bool
	calls  sync.WaitGroup
}

type localMethod struct {
	impl   any
	handle grpc.MethodHandler
}

func newLocalServer(srv *grpc.Server, shared *server) *Server {
	s := &Server{
		Server: srv, server: shared, methods: map[string]localMethod{},
		streamed: map[string]localStreamMethod{},
	}
	s.live, s.giveUp = context.WithCancel(context.Background())
	return s
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.Server.RegisterService(s.overConnections(desc), impl)
	for _, m := range desc.Methods {
		s.methods["/"+desc.ServiceName+"/"+m.MethodName] = localMethod{impl, m.Handler}
	}
	for _, m := range desc.Streams {
		s.streamed["/"+desc.ServiceName+"/"+m.StreamName] = localStreamMethod{impl, m}
	}
}

// GracefulStop refuses new calls and returns when all running ones have ended.
func (s *Server) GracefulStop() {
	s.refuseCalls()
	s.Server.GracefulStop()
	s.calls.Wait()
	s.giveUp()
}

// Stop cancels the running calls and returns when all have ended.
func (s *Server) Stop() {
	s.refuseCalls()
	s.giveUp()
	s.Server.Stop()
	s.calls.Wait()
}

// refuseCalls makes beginCall return false from now on.
func (s *Server) refuseCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// beginCall reports whether a call within the process may begin. If so, the caller must call s.calls.Done at its end.
func (s *Server) beginCall() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

// errNotLocal means that a call must use the connection, which also returns the error of a
// call that is invalid or too large.
var errNotLocal = errors.New("rpc: not a call within the process")

var wires = sync.Pool{New: func() any { return new([]byte) }}

// maxWire is how large a buffer may be to be kept.
const maxWire = 64 << 10

// call runs a unary method. ctx has the metadata that the caller sends. It returns
// errNotLocal, and has run nothing, if the call cannot be made here.
func (s *Server) call(ctx context.Context, method string, args, reply any, opts []grpc.CallOption) error {
	m, ok := s.methods[method]
	req, reqOK := args.(proto.Message)
	out, outOK := reply.(proto.Message)
	if !ok || !reqOK || !outOK || !s.beginCall() {
		return errNotLocal
	}
	defer s.calls.Done()

	// Encode the request.
	buf := wires.Get().(*[]byte) //nolint:forcetypeassert // it holds nothing else
	defer func() {
		if cap(*buf) <= maxWire {
			wires.Put(buf)
		}
	}()
	wire, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], req)
	if err != nil || len(wire) > fault.MaxRequestBytes {
		return errNotLocal
	}
	*buf = wire

	// Run the handler with a context as it would have over a connection.
	sent := &localStream{method: method}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.live, cancel)()
	md, _ := metadata.FromOutgoingContext(ctx)
	ctx = metadata.NewIncomingContext(metadata.NewOutgoingContext(ctx, nil), md)
	ctx = grpc.NewContextWithServerTransportStream(ctx, sent)
	resp, err := m.handle(m.impl, ctx, func(into any) error {
		msg, ok := into.(proto.Message)
		if !ok {
			return fmt.Errorf("rpc: %T is no message", into)
		}
		return proto.Unmarshal(wire, msg)
	}, s.unary)
	sent.deliver(opts)

	// Return a copy of the response.
	if err != nil {
		// Wrapped errors are not passed to the caller, as over the wire.
		return status.Convert(err).Err()
	}
	msg, ok := resp.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "rpc: %T is no message", resp)
	}
	if wire, err = (proto.MarshalOptions{}).MarshalAppend((*buf)[:0], msg); err != nil {
		return status.Errorf(codes.Internal, "rpc: answer of %s: %v", method, err)
	}
	*buf = wire
	return proto.Unmarshal(wire, out)
}

// localStream receives the headers that a handler sets.
type localStream struct {
	method string

	mu              sync.Mutex
	header, trailer metadata.MD
}

func (l *localStream) Method() string { return l.method }

func (l *localStream) SetHeader(md metadata.MD) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.header = metadata.Join(l.header, md)
	return nil
}

func (l *localStream) SendHeader(md metadata.MD) error { return l.SetHeader(md) }

func (l *localStream) SetTrailer(md metadata.MD) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trailer = metadata.Join(l.trailer, md)
	return nil
}

// deliver sets the headers and trailers that the caller's options request.
func (l *localStream) deliver(opts []grpc.CallOption) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = l.header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = l.trailer
		}
	}
}

// Conn is a connection to a service by name.
type Conn struct {
	*grpc.ClientConn
	network  *Network
	name     string // "" if the service is elsewhere
	affinity affinity
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.name != "" {
		if srv := c.network.here(c.name); srv != nil {
			err := srv.call(c.network.cred.attach(ctx), method, args, reply, opts)
			if !errors.Is(err, errNotLocal) {
				return rebuild(err)
			}
		}
	}
	if c.name == "" {
		return c.invoke(ctx, method, args, reply, opts)
	}
	return c.ClientConn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	if srv := c.network.here(c.name); srv != nil { // nobody serves the name ""
		if s, err := srv.open(c.network.cred.attach(ctx), desc, method, opts); err == nil {
			return clientStream{s}, nil
		}
	}
	return c.ClientConn.NewStream(ctx, desc, method, opts...)
}

// here returns the server that serves name in this process, nil if none does.
func (n *Network) here(name string) *Server {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return nil
	}
	return n.servers[name]
}
