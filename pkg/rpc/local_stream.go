package rpc

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"quartet/pkg/fault"
)

// pipeDepth is how many messages of each direction of a stream within the process may wait for their
// receiver; then the sender waits.
const pipeDepth = 16

type localStreamMethod struct {
	impl any
	desc grpc.StreamDesc
}

// open begins a stream whose handler runs in this process, without HTTP/2. ctx has the metadata that the
// caller sends. It returns errNotLocal, and has begun nothing, if the call cannot be made here.
func (s *Server) open(ctx context.Context, desc *grpc.StreamDesc, method string, opts []grpc.CallOption) (
	grpc.ClientStream, error,
) {
	m, ok := s.streamed[method]
	if !ok || !s.beginCall() {
		return nil, errNotLocal
	}
	p := &pipe{
		localStream: localStream{method: method},
		up:          make(chan mem.BufferSlice, pipeDepth), down: make(chan mem.BufferSlice, pipeDepth),
		begun: make(chan struct{}), ended: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(s.live, p.cancel)
	md, _ := metadata.FromOutgoingContext(ctx)
	serving := metadata.NewIncomingContext(metadata.NewOutgoingContext(p.ctx, nil), md)
	serving = grpc.NewContextWithServerTransportStream(serving, p)
	info := &grpc.StreamServerInfo{
		FullMethod: method, IsClientStream: m.desc.ClientStreams,
		IsServerStream: m.desc.ServerStreams,
	}
	go func() {
		defer s.calls.Done()
		defer stop()
		err := s.stream(m.impl, pipeServer{p, serving}, info, m.desc.Handler)
		// Wrapped errors are not passed to the caller, as over the wire.
		p.end(status.Convert(err))
	}()
	return &pipeClient{pipe: p, ctx: ctx, desc: desc, opts: opts}, nil
}

// pipe is a stream within the process. It is the transport's stream for both sides.
type pipe struct {
	localStream
	ctx      context.Context //nolint:containedctx // the stream's: it ends with the caller's, the server's life and the stream
	cancel   context.CancelFunc
	up, down chan mem.BufferSlice

	begin sync.Once
	begun chan struct{} // closed when the header is sent

	finish sync.Once
	ended  chan struct{} // closed when status is set
	status *status.Status
}

// SendHeader implements grpc.ServerTransportStream.
func (p *pipe) SendHeader(md metadata.MD) error {
	err := p.SetHeader(md)
	p.sendHeader()
	return err
}

// sendHeader tells the caller that the header is complete. Only the first call counts.
func (p *pipe) sendHeader() { p.begin.Do(func() { close(p.begun) }) }

// WriteStatus ends the stream from any goroutine, as that of the HTTP/2 transport does.
func (p *pipe) WriteStatus(st *status.Status) error {
	p.end(st)
	return nil
}

// end ends the stream with a status, unless it has ended.
func (p *pipe) end(st *status.Status) {
	p.finish.Do(func() {
		p.status = st
		close(p.ended)
		p.cancel()
	})
}

// sendWire sends a message to the other side, unless done is closed before there is room. It reports whether it was
// sent.
func sendWire(to chan<- mem.BufferSlice, m any, done <-chan struct{}) (sent bool, err error) {
	wire, err := rawCodec{}.Marshal(m)
	if err != nil {
		return false, status.Error(codes.Internal, "rpc: encode a message: "+err.Error())
	}
	// select chooses at random among ready channels, so look at done first: nothing is sent behind the end.
	select {
	case <-done:
		return false, nil
	default:
	}
	select {
	case to <- wire:
		return true, nil
	case <-done:
		return false, nil
	}
}

// decodeWire decodes a message that the other side sent into m. It returns RESOURCE_EXHAUSTED for more than maxBytes.
func decodeWire(wire mem.BufferSlice, m any, maxBytes int) error {
	defer wire.Free()
	if wire.Len() > maxBytes {
		// The text is that of gRPC, which fault recognises.
		return status.Errorf(codes.ResourceExhausted, "rpc: received message larger than max (%d vs. %d)", wire.Len(),
			maxBytes)
	}
	if err := (rawCodec{}).Unmarshal(wire, m); err != nil {
		return status.Error(codes.Internal, "rpc: decode a message: "+err.Error())
	}
	return nil
}

// pipeServer is a pipe as its handler sees it.
type pipeServer struct {
	*pipe
	ctx context.Context //nolint:containedctx // the handler's, as that of a stream
}

// Context implements grpc.ServerStream.
func (p pipeServer) Context() context.Context { return p.ctx }

// SetTrailer implements grpc.ServerStream.
func (p pipeServer) SetTrailer(md metadata.MD) { _ = p.pipe.SetTrailer(md) }

// SendMsg implements grpc.ServerStream.
func (p pipeServer) SendMsg(m any) error {
	p.sendHeader()
	sent, err := sendWire(p.down, m, p.ctx.Done())
	if !sent && err == nil {
		err = status.FromContextError(p.ctx.Err()).Err()
	}
	return err
}

// RecvMsg implements grpc.ServerStream. It returns io.EOF behind the last message of the caller.
func (p pipeServer) RecvMsg(m any) error {
	if err := p.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	select {
	case wire, ok := <-p.up:
		if !ok {
			return io.EOF
		}
		return decodeWire(wire, m, fault.MaxRequestBytes)
	case <-p.ctx.Done():
		return status.FromContextError(p.ctx.Err()).Err()
	}
}

// pipeClient is a pipe as its caller sees it. One goroutine may send while another one receives.
type pipeClient struct {
	*pipe
	ctx    context.Context //nolint:containedctx // the caller's, as that of a stream
	desc   *grpc.StreamDesc
	opts   []grpc.CallOption
	closed bool // by CloseSend
}

// Context implements grpc.ClientStream.
func (p *pipeClient) Context() context.Context { return p.ctx }

// Header implements grpc.ClientStream. Of a stream that ended without a header it returns nil; RecvMsg returns why.
func (p *pipeClient) Header() (metadata.MD, error) {
	select {
	case <-p.begun:
	case <-p.ended:
	case <-p.ctx.Done():
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.header, nil
}

// Trailer implements grpc.ClientStream.
func (p *pipeClient) Trailer() metadata.MD {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trailer
}

// CloseSend implements grpc.ClientStream.
func (p *pipeClient) CloseSend() error {
	if !p.closed {
		p.closed = true
		close(p.up)
	}
	return nil
}

// SendMsg implements grpc.ClientStream. If the stream has ended, it returns io.EOF, or nil if the caller sends one
// message only, as over a connection; RecvMsg then returns why the stream ended.
func (p *pipeClient) SendMsg(m any) error {
	if p.closed {
		return status.Error(codes.Internal, "rpc: a message behind the end of the caller's messages")
	}
	sent, err := sendWire(p.up, m, p.pipe.ctx.Done())
	switch {
	case err != nil:
		p.end(status.Convert(err)) // as if the caller had ended it
		return err
	case !p.desc.ClientStreams:
		return p.CloseSend()
	case !sent:
		return io.EOF
	}
	return nil
}

// RecvMsg implements grpc.ClientStream. What was sent before the end is received before it.
func (p *pipeClient) RecvMsg(m any) error {
	wire, err := p.next()
	if err == nil {
		err = decodeWire(wire, m, clientRecvMax)
		if err != nil {
			p.end(status.Convert(err))
			return err
		}
		if p.desc.ServerStreams {
			return nil
		}
		// The call has one answer, which counts once the call has succeeded: receive the end.
		if wire, err = p.next(); err == nil {
			wire.Free()
			err = status.Error(codes.Internal, "rpc: a second answer to a call that has one")
			p.end(status.Convert(err))
			return err
		}
		if err == io.EOF { //nolint:errorlint // next returns it unwrapped
			err = nil
		}
	} else if err == io.EOF && !p.desc.ServerStreams { //nolint:errorlint // next returns it unwrapped
		err = status.Error(codes.Internal, "rpc: no answer to a call that has one")
	}
	p.deliver(p.opts) // the call has ended: header and trailer are complete
	return err
}

// next returns the next message, io.EOF behind the last one of a stream that succeeded, or the error of the stream.
func (p *pipeClient) next() (mem.BufferSlice, error) {
	if err := p.ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	// select chooses at random among ready channels, so look for a message first.
	select {
	case wire := <-p.down:
		return wire, nil
	default:
	}
	select {
	case wire := <-p.down:
		return wire, nil
	case <-p.ctx.Done():
		return nil, status.FromContextError(p.ctx.Err()).Err()
	case <-p.ended:
	}
	// The stream has ended; messages may have been sent before that.
	select {
	case wire := <-p.down:
		return wire, nil
	default:
	}
	if err := p.status.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}
