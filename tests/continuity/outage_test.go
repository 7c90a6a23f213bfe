package continuity

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	"quartet/pkg/journal/framelog"
)

// outage ends a server after a number of frames: the frame that is the last one is stored, and
// from then on nothing is, and nobody learns anything from this server any more.
type outage struct {
	mu     sync.Mutex
	frames int           // stored since the beginning
	last   int           // the frame after which the server ends; 0: none
	off    bool          // frames do not count
	down   chan struct{} // closed when the server has ended
}

// pause lets frames not count, or count again.
func (o *outage) pause(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.off = on
}

var errDown = errors.New("the server has ended")

func newOutage() *outage { return &outage{down: make(chan struct{})} }

// begin counts from here, and lets the server end after the frame with a number, or never.
func (o *outage) begin(last int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frames, o.last = 0, last
}

func (o *outage) stored() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.frames
}

func (o *outage) over() bool {
	select {
	case <-o.down:
		return true
	default:
		return false
	}
}

// ended is the channel that is closed when the server of now has ended.
func (o *outage) ended() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down
}

// mend lets the next server store frames, to its end.
func (o *outage) mend() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down, o.last = make(chan struct{}), 0
}

// log wraps the log of a plane for the server of now.
func (o *outage) log(l framelog.Log) framelog.Log {
	return &cutLog{Log: l, o: o, down: o.ended()}
}

// cutLog is a plane's log until its server ends.
type cutLog struct {
	framelog.Log
	o    *outage
	down <-chan struct{} // of this server
}

// Append implements framelog.Log.
func (l *cutLog) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	select {
	case <-l.down:
		return 0, errDown
	default:
	}
	seq, err := l.Log.Append(ctx, expect, f)
	if err != nil {
		return seq, err
	}
	if l.o.off {
		return seq, nil
	}
	if l.o.frames++; l.o.frames == l.o.last {
		close(l.o.down)
		return 0, errDown
	}
	return seq, nil
}

// counted counts the messages that a service has received on its streams, and handled but for
// the last one.
type counted struct {
	grpc.ServiceRegistrar
	mu    sync.Mutex
	moved *sync.Cond
	n     int
}

func newCounted() *counted {
	c := &counted{}
	c.moved = sync.NewCond(&c.mu)
	return c
}

// on returns c as a registrar of streams on srv.
func (c *counted) on(srv grpc.ServiceRegistrar) grpc.ServiceRegistrar {
	return registrar{srv, c}
}

type registrar struct {
	grpc.ServiceRegistrar
	c *counted
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Streams = nil
	for _, s := range desc.Streams {
		handler := s.Handler
		s.Handler = func(srv any, stream grpc.ServerStream) error {
			return handler(srv, countedStream{stream, r.c})
		}
		own.Streams = append(own.Streams, s)
	}
	r.ServiceRegistrar.RegisterService(&own, impl)
}

type countedStream struct {
	grpc.ServerStream
	c *counted
}

// RecvMsg implements grpc.ServerStream.
func (s countedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.n++
	s.c.moved.Broadcast()
	return err
}

// more waits until n further messages have been received.
func (c *counted) more(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for until := c.n + n; c.n < until; {
		c.moved.Wait()
	}
}
