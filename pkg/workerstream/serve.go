package workerstream

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
)

// Handler is the plane's side of one session. Serve calls Welcome, then Run and
// Receive at the same time, and then Close. A Receive that is in progress when the
// session ends may still run during Close and after it.
type Handler[In any] interface {
	// Welcome reconciles the records of the plane with what the worker holds. The header is
	// sent when it returns; what it sends with Session.Send is delivered after the header.
	Welcome() error
	// Receive handles one message. It is called from one goroutine, in the order of
	// the stream. An error ends the session and is the stream's status.
	Receive(m *In) error
	// Run does the other work of the session until ctx, the session's context, ends.
	// It may return nil earlier. An error ends the session and is the stream's status.
	Run(ctx context.Context) error
	// Close is called when the session has ended and its messages are no longer
	// sent, also if the session was refused and Welcome was not called. It must not
	// return before everything that the handler started for the session has ended.
	Close()
}

// Serve serves a worker's stream until the session ends: because the worker closes the
// stream, the handler returns an error, another stream of the worker replaces it, End is called, or
// stopping is closed. It returns nil if the worker closed the stream or the stream's context was
// cancelled, stopped if stopping was closed, and otherwise why the session ended.
func Serve[In, Out any](
	stream grpc.BidiStreamingServer[In, Out], registry *Registry[Out], s *Session[Out], h Handler[In],
	stopping <-chan struct{}, stopped error,
) error {
	defer h.Close()
	defer s.end(context.Canceled)
	if err := registry.join(s); err != nil {
		return err
	}
	defer registry.leave(s)
	if err := h.Welcome(); err != nil {
		return err
	}
	// The header tells the worker that its hello was reconciled. From then on the worker is
	// ready, so the plane must already count it among those that accept work.
	registry.setOpen(s, true)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.sendLoop(stream.Send)
	}()
	// A stream must not be used after its gRPC handler has returned, so wait for the sender.
	// The receiver returns after that, because the stream's context ends with the gRPC handler.
	defer func() {
		s.end(context.Canceled)
		<-sent
	}()
	go receiveLoop(s, stream.Recv, h.Receive)
	go func() {
		select {
		case <-stopping:
			s.end(stopped)
		case <-s.ctx.Done():
		}
	}()
	if err := h.Run(s.ctx); err != nil {
		s.end(err)
	}
	<-s.ctx.Done()
	if cause := context.Cause(s.ctx); !errors.Is(cause, io.EOF) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
