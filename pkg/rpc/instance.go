package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Instance holds the gRPC services of one module for direct calls, in place of a server. A
// router has one for each instance that it may call.
type Instance struct {
	descs   []*grpc.ServiceDesc
	methods map[string]call
	streams map[string]streaming
	err     error

	mu     sync.Mutex
	calls  int
	closed bool
	idle   chan struct{} // closed when it takes no calls and none is left
}

// enter begins a call; false once Drain was called.
func (i *Instance) enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.calls++
	return true
}

// leave ends a call that enter began. The last one after Drain was called lets Drain return.
func (i *Instance) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.calls--; i.calls == 0 && i.closed {
		close(i.idle)
	}
}

// Drain refuses new calls, and waits until the running ones have ended or ctx has. It must be
// called at most once.
func (i *Instance) Drain(ctx context.Context) {
	i.mu.Lock()
	i.closed = true
	if i.calls == 0 {
		close(i.idle)
	}
	i.mu.Unlock()
	select {
	case <-i.idle:
	case <-ctx.Done():
	}
}

// call runs a method. It returns errDrained after Drain.
func (i *Instance) call(ctx context.Context, full string, req proto.Message) (proto.Message, error) {
	if !i.enter() {
		return nil, errDrained
	}
	defer i.leave()
	return i.methods[full].do(ctx, req)
}

// stream runs the handler of a stream. It returns errDrained after Drain.
func (i *Instance) stream(full string, ss grpc.ServerStream) error {
	if !i.enter() {
		return errDrained
	}
	defer i.leave()
	return i.streams[full].handle(ss)
}

// errDrained means that the call was not executed.
var errDrained = errors.New("rpc: the instance takes no more calls")

type call struct {
	do  func(ctx context.Context, req proto.Message) (proto.Message, error)
	in  protoreflect.MessageType
	out protoreflect.MessageType
}

type streaming struct {
	desc   grpc.StreamDesc
	handle func(ss grpc.ServerStream) error
	in     protoreflect.MessageType
}

// NewInstance returns the services that register registers. It returns an error if the messages of a method are not
// linked into the process.
func NewInstance(register func(grpc.ServiceRegistrar)) (*Instance, error) {
	i := &Instance{methods: map[string]call{}, streams: map[string]streaming{}, idle: make(chan struct{})}
	register(i)
	return i, i.err
}

// RegisterService implements grpc.ServiceRegistrar.
func (i *Instance) RegisterService(desc *grpc.ServiceDesc, impl any) {
	i.descs = append(i.descs, desc)
	for _, m := range desc.Methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		in, out, err := MessageTypes(full)
		if err != nil {
			i.err = err
			return
		}
		i.methods[full] = call{in: in, out: out, do: func(ctx context.Context, req proto.Message) (proto.Message,
			error,
		) {
			// The generated handler creates the request and calls the function to fill it.
			// A call of the method by reflection would avoid the copy, but then the linker
			// keeps all methods of all types, and the binary is a third larger.
			resp, err := m.Handler(impl, ctx, func(into any) error {
				proto.Merge(into.(proto.Message), req) //nolint:forcetypeassert // the generated code's
				return nil
			}, nil)
			out, _ := resp.(proto.Message)
			return out, err
		}}
	}
	for _, s := range desc.Streams {
		full := "/" + desc.ServiceName + "/" + s.StreamName
		in, _, err := MessageTypes(full)
		if err != nil {
			i.err = err
			return
		}
		i.streams[full] = streaming{
			desc: s, in: in, handle: func(ss grpc.ServerStream) error { return s.Handler(impl, ss) },
		}
	}
}

// MessageTypes returns the types of the request and the response of a method, given as "/package.Service/Method".
func MessageTypes(full string) (in, out protoreflect.MessageType, err error) {
	name := strings.ReplaceAll(full[1:], "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, nil, err
	}
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, nil, fmt.Errorf("rpc: %s is no method", name)
	}
	if in, err = protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName()); err != nil {
		return nil, nil, err
	}
	out, err = protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	return in, out, err
}
