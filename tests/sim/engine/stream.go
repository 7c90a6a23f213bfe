package engine

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
)

// NewStream implements grpc.ClientConnInterface. The beginning of a stream is a crossing, and so are its header, its
// end and each of its messages, in the order of their direction. A stream one of whose messages is lost is broken.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	name := c.Queue.Name(ctx, "stream "+c.Edge+" "+method[1+lastSlash(method):])
	o, err := c.Queue.Park(ctx, Crossing{Name: name, Of: c.Of, Faults: responseFaults})
	switch {
	case err != nil:
		return nil, fault.From(err)
	case o != Pass:
		return nil, c.broken("the stream was not begun", "none")
	}
	to, conn := c.Serving()
	if conn == nil {
		return nil, c.broken("nobody serves it", "none")
	}
	inner, cut := context.WithCancel(Because(ctx, name))
	s, err := conn.NewStream(inner, desc, method, opts...)
	if err != nil {
		cut()
		return nil, err
	}
	return &stream{ClientStream: s, conn: c, ctx: ctx, name: name, to: to, cut: cut}, nil
}

// stream is a stream as its client sees it. One goroutine may send while another one receives.
type stream struct {
	grpc.ClientStream
	conn *Conn
	ctx  context.Context //nolint:containedctx // the client's, as that of a stream
	name string
	to   *Process
	cut  context.CancelFunc // ends the stream for its server

	sent, received int // messages

	mu     sync.Mutex
	broken error // why the stream broke, nil if it did not
}

var (
	sendFaults    = []Outcome{Lost, Unanswered}
	receiveFaults = []Outcome{Lost}
)

// err returns why the stream broke, nil if it did not.
func (s *stream) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// fail breaks the stream, unless it is broken.
func (s *stream) fail(why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = s.conn.broken(why, "unknown")
	}
	s.cut()
	return s.broken
}

// Context implements grpc.ClientStream.
func (s *stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ClientStream. It returns when the server's process has the message.
func (s *stream) SendMsg(m any) error {
	if s.err() != nil {
		return io.EOF
	}
	s.sent++
	msg, _ := m.(proto.Message)
	o, err := s.conn.Queue.Park(s.ctx, Crossing{
		Name: fmt.Sprintf("send %s %d %s", s.name, s.sent, digest(msg)),
		Of:   s.conn.Of, Faults: sendFaults,
	})
	switch {
	case err != nil:
		return fault.From(err)
	case o != Pass && o != Unanswered, s.to.isDead():
		_ = s.fail("a message was lost")
		return io.EOF
	}
	err = s.ClientStream.SendMsg(m)
	if o == Unanswered {
		_ = s.fail("the stream broke behind a message")
		return io.EOF
	}
	return err
}

// Header implements grpc.ClientStream.
func (s *stream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if arrived := s.arrive("header"); arrived != nil {
		return nil, arrived
	}
	return md, err
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	if err := s.err(); err != nil {
		return err
	}
	s.received++
	err := s.ClientStream.RecvMsg(m)
	what := "end"
	if msg, ok := m.(proto.Message); ok && err == nil {
		what = digest(msg)
	}
	if arrived := s.arrive(fmt.Sprint(s.received, " ", what)); arrived != nil {
		return arrived
	}
	return err
}

// arrive parks the arrival of something that the server sent, and returns an error if that does not arrive.
func (s *stream) arrive(what string) error {
	if err := s.err(); err != nil {
		return err
	}
	o, err := s.conn.Queue.Park(s.ctx, Crossing{
		Name: "receive " + s.name + " " + what, Of: s.conn.Of,
		Faults: receiveFaults,
	})
	switch {
	case err != nil:
		return fault.From(err)
	case s.err() != nil:
		return s.err()
	case o != Pass, s.to.isDead():
		return s.fail("the stream broke")
	}
	return nil
}
