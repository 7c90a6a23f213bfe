package rpc

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// partitionKey names the partition that a call is for, between two instances of a service.
// The instance that receives it serves or refuses the call and does not forward it again.
const partitionKey = "quartet-partition"

// Place is the location of a partition: this process if Local is set, or else the instance at
// Addr, whose certificate has Name. If neither is set, no instance holds the partition at the
// moment.
type Place struct {
	Local      *Instance
	Addr, Name string
	// Lives ends with the lease session of the instance, after which no response of it is
	// to be expected. Optional.
	Lives context.Context //nolint:containedctx // the life of another instance
}

// Routes describes a service and where its partitions are.
type Routes struct {
	// Service is the name of the service, for messages.
	Service string
	// Size is the number of partitions.
	Size func() int
	// Of returns the partition of an agent. It is not called if Size is 1.
	Of func(namespace, agentID string) int
	// Search are the full names of methods whose requests do not name an agent. They are
	// called at one partition after the other until one does not return NOT_FOUND.
	Search []string
	// Where returns where a partition is. changed is closed when this may have changed.
	Where func(partition int) (p Place, changed <-chan struct{})
	// Left reports whether an error means that the instance does not hold the partition any more.
	// The call was not executed, unless the metadata key outcome of the error is "unknown".
	Left func(err error) bool
	// Peer returns a connection to another instance, which sends no credential of its own.
	Peer func(addr, name string) grpc.ClientConnInterface
	// Missing returns the error in place of a NOT_FOUND about a record that may be in another
	// partition. Optional.
	Missing func(ctx context.Context, req proto.Message, err error) error
	// NewID returns request ids for calls without one.
	NewID func(prefix string) string
}

// pollEvery is how often the place of a partition that no instance holds is read, in addition to
// notifications of changes.
const pollEvery = 250 * time.Millisecond

// router forwards calls to the instances of a service.
type router struct {
	Routes
	search map[string]bool
	shape  *Instance
}

// Route registers a service whose partitions may be in this or in other processes. shape is
// any instance of it, from which the methods are read.
func Route(srv grpc.ServiceRegistrar, shape *Instance, routes Routes) {
	r := &router{Routes: routes, search: map[string]bool{}, shape: shape}
	for _, m := range routes.Search {
		r.search[m] = true
	}
	for _, d := range shape.descs {
		desc := grpc.ServiceDesc{ServiceName: d.ServiceName, HandlerType: (*any)(nil), Metadata: d.Metadata}
		for _, m := range d.Methods {
			full := "/" + d.ServiceName + "/" + m.MethodName
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: m.MethodName, Handler: r.handler(full)})
		}
		for _, s := range d.Streams {
			full := "/" + d.ServiceName + "/" + s.StreamName
			desc.Streams = append(desc.Streams, grpc.StreamDesc{
				StreamName: s.StreamName, ServerStreams: s.ServerStreams, ClientStreams: s.ClientStreams,
				Handler: func(_ any, ss grpc.ServerStream) error { return r.stream(full, ss) },
			})
		}
		srv.RegisterService(&desc, r)
	}
}

// handler returns the handler of a unary method, by its full name.
func (r *router) handler(full string) grpc.MethodHandler {
	in := r.shape.methods[full].in
	return func(srv any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
		req := in.New().Interface()
		if err := decode(req); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) {
			return r.unary(ctx, full, req.(proto.Message)) //nolint:forcetypeassert // made above
		}
		if around == nil {
			return handle(ctx, req)
		}
		return around(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, handle)
	}
}

// unary makes a call at the instance that holds its partition. The partition is the one for which another instance
// forwarded the call, or else the one that the request names or whose agent it names; for a method in Routes.Search,
// the first one that does not return NOT_FOUND.
func (r *router) unary(ctx context.Context, full string, req proto.Message) (proto.Message, error) {
	n, sent, err := r.sentFor(ctx)
	switch {
	case err != nil:
		return nil, err
	case sent:
		return r.serveForwarded(ctx, n, full, req)
	case !r.search[full]:
		if q, ok := req.(interface{ GetPartition() int32 }); ok {
			n = int(q.GetPartition())
			if n < 0 || n >= r.Size() {
				return nil, fault.Invalid("partition", strconv.Itoa(n), "must be the number of a partition of "+
					r.Service+", 0 to "+strconv.Itoa(r.Size()-1))
			}
			return r.callHolder(ctx, n, full, req)
		}
		resp, err := r.callHolder(ctx, r.partitionOf(ctx, req), full, req)
		if r.Missing != nil && r.Size() > 1 && errors.Is(err, fault.NotFound) {
			err = r.Missing(ctx, req, err)
		}
		return resp, err
	}

	// The request does not name an agent: search all partitions.
	var resp proto.Message
	for n := range r.Size() {
		if resp, err = r.callHolder(ctx, n, full, req); !errors.Is(err, fault.NotFound) {
			break
		}
	}
	return resp, err
}

// sentFor returns the partition for which another instance forwarded a call.
func (r *router) sentFor(ctx context.Context) (n int, sent bool, err error) {
	v := metadata.ValueFromIncomingContext(ctx, partitionKey)
	if len(v) == 0 {
		return 0, false, nil
	}
	n, err = strconv.Atoi(v[0])
	if err != nil || n < 0 || n >= r.Size() {
		return 0, true, fault.Invalid(partitionKey, v[0], "must be the number of a partition of "+r.Service+", 0 to "+
			strconv.Itoa(r.Size()-1)+"; clients leave it out")
	}
	return n, true, nil
}

// partitionOf returns the partition that a request is about: that of the agent that it names, or that of the name "" if
// it names none.
func (r *router) partitionOf(ctx context.Context, req proto.Message) int {
	if r.Size() == 1 {
		return 0
	}
	agent := ""
	if q, ok := req.(interface{ GetAgentId() string }); ok {
		agent = q.GetAgentId()
	}
	return r.Of(ActorFrom(ctx).Namespace, agent)
}

// serveForwarded serves a call that another instance forwarded for a partition. It waits while no instance holds
// the partition. It returns PARTITION_MOVED if another one does, and the sender then looks up the
// partition again.
func (r *router) serveForwarded(ctx context.Context, n int, full string, req proto.Message) (proto.Message, error) {
	for {
		p, changed := r.Where(n)
		if p.Local == nil && p.Addr != "" {
			return nil, r.errMoved(n)
		}
		if p.Local != nil {
			resp, err := p.Local.call(ctx, full, req)
			if err != nil && r.wasReleased(n, p, err) {
				return nil, r.errMoved(n)
			}
			return resp, err
		}
		if !waitFor(ctx, changed) {
			return nil, r.errMoved(n)
		}
	}
}

// errMoved returns PARTITION_MOVED for partition n.
func (r *router) errMoved(n int) error {
	return fault.PartitionMoved.Newf("partition %d of %s is held by another instance", n, r.Service).
		With("partition", strconv.Itoa(n))
}

// wasReleased reports whether err, the error of a call to partition n at the place called, means that the call was not
// executed because the instance has released the partition.
func (r *router) wasReleased(n int, called Place, err error) bool {
	if errors.Is(err, errDrained) {
		return true
	}
	if r.Left(err) {
		return fault.From(err).Metadata()[outcomeKey] != "unknown"
	}
	if !errors.Is(err, fault.NotReady) {
		return false
	}
	// A long poll returns NOT_READY when its service stops, as it does when it releases the partition.
	current, _ := r.Where(n)
	return current.Local != called.Local
}

// callHolder makes a call at the partition's instance. While no instance holds the partition it waits,
// within the caller's deadline, and then returns PARTITION_MOVED. It repeats a call whose instance
// was lost or released the partition, also if it may have been executed; req gets a request id for
// that if it has none. Once it may have been executed, no later error says that it was not.
func (r *router) callHolder(ctx context.Context, n int, full string, req proto.Message) (proto.Message, error) {
	if requestID(req) == "" && !Recalling(ctx) {
		// If the partition moves during the call and the response is lost, the call is
		// repeated, and the next holder must recognise it.
		setRequestID(req, r.NewID)
	}
	executed := false // by an instance whose response was lost, perhaps
	for {
		p, changed := r.Where(n)
		switch {
		case p.Local != nil:
			resp, err := p.Local.call(ctx, full, req)
			if err == nil || !r.wasReleased(n, p, err) && !r.Left(err) {
				return resp, afterOthers(err, executed)
			}
			executed = executed || mayBeExecuted(err)
		case p.Addr != "":
			resp, err := r.callPeer(ctx, p, n, full, req)
			if err == nil {
				return resp, nil
			}
			lost := disconnected(err) || leaseEnded(p) && ctx.Err() == nil
			failure := rebuild(err)
			if !lost && !r.movedFrom(n, p, failure) {
				return nil, afterOthers(failure, executed)
			}
			executed = executed || lost || mayBeExecuted(failure)
		}

		// No instance holds it now, or the one that was called lost it.
		if !waitFor(ctx, changed) {
			return nil, fault.PartitionMoved.Newf("nobody holds partition %d of %s at the moment; its instance was "+
				"lost or hands it over", n, r.Service).
				With("partition", strconv.Itoa(n))
		}
	}
}

// outcomeKey is the metadata key of errors that says whether a call was executed: none or unknown.
const outcomeKey = "outcome"

// mayBeExecuted reports whether the call that an instance answered with an error, because it does not hold the
// partition any more, may have been executed.
func mayBeExecuted(err error) bool {
	return !errors.Is(err, errDrained) && !errors.Is(err, fault.PartitionMoved) &&
		fault.From(err).Metadata()[outcomeKey] != "none"
}

// afterOthers returns err, the error of the last attempt to make a call. If an earlier attempt may have been
// executed, it replaces the outcome none, which is that of the last attempt alone, by unknown.
func afterOthers(err error, executed bool) error {
	if err == nil || !executed {
		return err
	}
	e := fault.From(err)
	if e.Metadata()[outcomeKey] == "none" {
		return e.With(outcomeKey, "unknown")
	}
	return err
}

// movedFrom reports whether an error of another instance means that this instance no longer holds the
// partition, so that the call must be repeated. The call has a request id or changes nothing.
func (r *router) movedFrom(n int, called Place, err error) bool {
	if errors.Is(err, fault.PartitionMoved) {
		return true
	}
	if fault.From(err).Code() != codes.Unavailable {
		return false
	}
	current, _ := r.Where(n)
	return current.Addr != called.Addr
}

// disconnected reports whether an error is one of the connection and not of the service.
func disconnected(err error) bool {
	st, ok := status.FromError(err)
	return ok && st.Code() == codes.Unavailable && len(st.Details()) == 0
}

// leaseEnded reports whether the lease session of the instance at p has ended.
func leaseEnded(p Place) bool { return p.Lives != nil && p.Lives.Err() != nil }

// callPeer makes a call at another instance with the caller's credential. It stops waiting for the
// response when p.Lives ends.
func (r *router) callPeer(ctx context.Context, p Place, n int, full string, req proto.Message) (proto.Message, error) {
	var header, trailer metadata.MD
	resp := r.shape.methods[full].out.New().Interface()

	asking, cancel := context.WithCancel(r.outgoing(ctx, n))
	defer cancel()
	if p.Lives != nil {
		defer context.AfterFunc(p.Lives, cancel)()
	}
	err := r.Peer(p.Addr, p.Name).Invoke(asking, full, req, resp, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		return nil, err
	}

	// Pass on the header and trailer, and tell the caller whom to call directly.
	header = withoutConnection(header)
	if r.Size() > 1 { // planes with one partition have long polls, which directTerm would interrupt
		header.Set(holderKey, p.Addr+" "+p.Name)
	}
	_ = grpc.SetHeader(ctx, header) // fails only if ctx is not that of a call
	_ = grpc.SetTrailer(ctx, withoutConnection(trailer))
	return resp, nil
}

// outgoing returns the context of a call to another instance for partition n: with the caller's metadata, the trace,
// and whether the call was recorded in the audit log.
func (r *router) outgoing(ctx context.Context, n int) context.Context {
	in, _ := metadata.FromIncomingContext(ctx)
	md := forwardedMetadata(in)
	delete(md, forwardedKey) // partitionKey prevents that it is forwarded again
	md.Set(partitionKey, strconv.Itoa(n))
	if WasRecorded(ctx) {
		md.Set(recordedHeader, "1")
	}
	if carried := tracing.Carried(ctx); carried != "" {
		md.Set(tracing.Header, carried)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// withoutConnection returns metadata without the entries of a connection.
func withoutConnection(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for k, v := range md {
		if !strings.HasPrefix(k, ":") && !strings.HasPrefix(k, "grpc-") && k != "content-type" {
			out[k] = v
		}
	}
	return out
}

// waitFor waits until changed is closed, at most for pollEvery. It returns false if ctx ends.
func waitFor(ctx context.Context, changed <-chan struct{}) bool {
	t := time.NewTimer(pollEvery)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// requestField returns the field request_id of a message, nil if it has none.
func requestField(req proto.Message) protoreflect.FieldDescriptor {
	f := req.ProtoReflect().Descriptor().Fields().ByName("request_id")
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return nil
	}
	return f
}

// requestID returns the request id of a message, "" if it has none.
func requestID(req proto.Message) string {
	if q, ok := req.(interface{ GetRequestId() string }); ok {
		return q.GetRequestId()
	}
	return ""
}

// setRequestID sets the request id of a message that has the field.
func setRequestID(req proto.Message, newID func(string) string) {
	if f := requestField(req); f != nil {
		req.ProtoReflect().Set(f, protoreflect.ValueOfString(newID("req_")))
	}
}
