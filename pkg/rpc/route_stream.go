package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
)

// stream forwards a stream to its partition, once: it tries again only while no instance has received the stream. After
// that an error ends the stream, and its client has to open it again.
func (r *router) stream(full string, ss grpc.ServerStream) error {
	ctx := ss.Context()
	s := r.shape.streams[full]
	n, sent, err := r.sentFor(ctx)
	if err != nil {
		return err
	}

	// The first message names the agent, and so the partition.
	if !sent && r.Size() > 1 {
		first := s.in.New().Interface()
		if err := ss.RecvMsg(first); err != nil {
			return err
		}
		n, ss = r.partitionOf(ctx, first), &begun{ss, first}
	}

	// Wait until an instance holds the partition, and forward the stream to it.
	for {
		p, changed := r.Where(n)
		switch {
		case p.Local != nil:
			err := p.Local.stream(full, ss)
			switch {
			case err == nil || !r.wasReleased(n, p, err):
				return err
			case !errors.Is(err, errDrained): // the handler had begun
				return r.errMoved(n)
			}
		case p.Addr != "" && sent: // it was forwarded here, and is not forwarded again
			return r.errMoved(n)
		case p.Addr != "":
			asking, cancel := context.WithCancel(r.outgoing(ctx, n))
			stop := func() bool { return true }
			if p.Lives != nil {
				stop = context.AfterFunc(p.Lives, cancel)
			}
			err := relay(asking, r.Peer(p.Addr, p.Name), full, ss)
			stop()
			cancel()
			if leaseEnded(p) && err != nil && ctx.Err() == nil {
				return r.errMoved(n) // the client knows where to continue
			}
			var notBegun *beginError
			if !errors.As(err, &notBegun) {
				return nameService(r.Service, err)
			}
			if !disconnected(notBegun.error) {
				return rebuild(notBegun.error)
			}
		}

		// No instance has received the stream.
		if !waitFor(ctx, changed) {
			return fault.PartitionMoved.Newf("nobody holds partition %d of %s at the moment", n, r.Service)
		}
	}
}

// begun is a stream whose first message has been read.
type begun struct {
	grpc.ServerStream
	first proto.Message
}

// RecvMsg implements grpc.ServerStream.
func (b *begun) RecvMsg(m any) error {
	if b.first == nil {
		return b.ServerStream.RecvMsg(m)
	}
	first := b.first
	b.first = nil
	switch m := m.(type) {
	case *raw: // the stream is relayed to another instance
		buf, err := rawCodec{}.Marshal(first)
		m.bytes = buf
		return err
	case proto.Message:
		proto.Merge(m, first)
		return nil
	}
	return errors.New("rpc: a message of an unknown kind")
}

// beginError means that a call could not be started, and no message was read.
type beginError struct{ error }

// relay opens a call at conn and copies messages in both directions until the called side ends it, or a message of the
// caller cannot be received or sent.
func relay(ctx context.Context, conn grpc.ClientConnInterface, method string, in grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return &beginError{err}
	}

	// Copy what the caller sends. The end of that is forwarded and does not end the call. If the called side has ended
	// the call, sending returns io.EOF, and the error of the call is received below. Any other error ends the call.
	go func() {
		err := copyMessages(out, in)
		if err == nil {
			_ = out.CloseSend()
		} else if !errors.Is(err, io.EOF) {
			cancel(&receiveError{err})
		}
	}()

	// Copy what the called side sends. The header is sent before the first message, because a worker waits for it.
	header, err := out.Header()
	if err == nil {
		err = in.SendHeader(withoutConnection(header))
	}
	if err == nil {
		err = copyMessages(in, out)
		in.SetTrailer(withoutConnection(out.Trailer()))
	}
	var failed *receiveError
	if err != nil && errors.As(context.Cause(ctx), &failed) {
		return failed.error
	}
	return err
}

// receiveError means that a message of the caller could not be received or sent.
type receiveError struct{ error }
