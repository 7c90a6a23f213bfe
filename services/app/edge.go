package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/connlimit"
	"quartet/pkg/rpc"
	"quartet/services/agent"
	"quartet/services/board"
	"quartet/services/task"
)

// errNoBroker is why a process is not ready without NATS.
var errNoBroker = errors.New("NATS is not reachable")

// deadlines returns the deadlines of the methods that may take longer than the server's default, by
// full method name.
func deadlines() map[string]time.Duration {
	all := task.Deadlines()
	maps.Copy(all, agent.Deadlines())
	maps.Copy(all, board.Deadlines())
	return all
}

// waits reports whether a method may take longer than the server's default allows.
func waits(method string) bool {
	_, ok := deadlines()[method]
	return ok
}

// drainTerm is how long calls in flight may take when the process stops or a unit of a
// host ends.
const drainTerm = 5 * time.Second

// edge is the module that serves the process's one gRPC server: in memory for callers in this
// process, over TCP for all others.
type edge struct {
	addr        string
	connections connlimit.Limits
	network     *rpc.Network
	server      *rpc.Server
	names       []string // the services that the network reaches in memory
	// release are functions that end long polls, so that Stop does not wait for them.
	release []func()
	// tokens writes the token file of the address; nil: none is written.
	tokens *tokenFiles
	bound  net.Listener
}

// Name implements life.Service.
func (e *edge) Name() string { return "rpc" }

// Start listens and serves.
func (e *edge) Start(ctx context.Context) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.addr)
	if err != nil {
		return fmt.Errorf("grpc-addr %s: %w", e.addr, err)
	}
	lis = e.server.Bound(lis, e.connections)
	e.bound = lis
	for _, name := range e.names {
		if err := e.network.Listen(name, e.server); err != nil {
			return errors.Join(err, lis.Close())
		}
	}
	if err := e.tokens.publish(lis.Addr()); err != nil {
		return errors.Join(err, lis.Close())
	}
	go func() { _ = e.server.Serve(lis) }() // ends with the server
	return nil
}

// Stop ends long polls, waits for calls in flight, at most drainTerm, and closes the server and the
// connections.
func (e *edge) Stop(ctx context.Context) error {
	if e.bound != nil {
		e.tokens.remove(e.bound.Addr())
	}
	for _, f := range e.release {
		f()
	}
	ctx, cancel := context.WithTimeout(ctx, drainTerm)
	defer cancel()
	rpc.Drain(ctx, e.server)
	return e.network.Close()
}

// Ready implements life.Service. It returns nil: once started, the edge can serve.
func (e *edge) Ready() error { return nil }

// Addr returns the address at which gRPC is served; before Start, the configured one.
func (e *edge) Addr() string {
	if e.bound == nil {
		return e.addr
	}
	return e.bound.Addr().String()
}

// elsewhere returns a connection to the process that serves a gRPC service, such as
// quartet.work.v1.WorkService: the package is named after the service. It is nil for a service
// whose address is not configured, and for one that is not Quartet's.
func elsewhere(network *rpc.Network, service string) grpc.ClientConnInterface {
	name, ok := strings.CutPrefix(service, "quartet.")
	if !ok {
		return nil
	}
	name, _, _ = strings.Cut(name, ".")
	if conn := network.Bare(servedWith(name)); conn != nil {
		return conn
	}
	return nil
}
