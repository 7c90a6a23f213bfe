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

	"quartet/pkg/rpc"
	"quartet/services/agent"
	"quartet/services/board"
	"quartet/services/task"
)

var errNoBroker = errors.New("NATS is not reachable")

// deadlines returns the calls that may wait longer than the server's default; each
// plane knows its own.
func deadlines() map[string]time.Duration {
	all := task.Deadlines()
	maps.Copy(all, agent.Deadlines())
	maps.Copy(all, board.Deadlines())
	return all
}

// waits reports whether an RPC may wait longer than the server's default allows.
func waits(method string) bool {
	_, ok := deadlines()[method]
	return ok
}

// drainTerm is how long calls in flight may take when the process stops or a unit of a
// host ends.
const drainTerm = 5 * time.Second

// edge is the process's one gRPC server: over memory for this process, over
// TCP for everybody else.
type edge struct {
	addr    string
	network *rpc.Network
	server  *rpc.Server
	names   []string
	// release lets long polls go, so that a stop does not wait for them.
	release []func()
	bound   net.Listener
}

func (e *edge) Name() string { return "rpc" }

func (e *edge) Start(ctx context.Context) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.addr)
	if err != nil {
		return fmt.Errorf("grpc-addr %s: %w", e.addr, err)
	}
	e.bound = lis
	for _, name := range e.names {
		if err := e.network.Listen(name, e.server); err != nil {
			return errors.Join(err, lis.Close())
		}
	}
	go func() { _ = e.server.Serve(lis) }() // ends with the server
	return nil
}

func (e *edge) Stop(ctx context.Context) error {
	for _, f := range e.release {
		f()
	}
	ctx, cancel := context.WithTimeout(ctx, drainTerm)
	defer cancel()
	rpc.Drain(ctx, e.server)
	return e.network.Close()
}

func (e *edge) Ready() error { return nil }

// Addr returns the address at which gRPC is served; before Start, the configured one.
func (e *edge) Addr() string {
	if e.bound == nil {
		return e.addr
	}
	return e.bound.Addr().String()
}

// elsewhere returns the way to a gRPC service that other processes serve: packages
// are named after their services. It is nil for a service whose address is not known, and
// for one that is not Quartet's. Backups are made where the homes are.
func elsewhere(network *rpc.Network, service string) grpc.ClientConnInterface {
	name, ok := strings.CutPrefix(service, "quartet.")
	if !ok {
		return nil
	}
	name, _, _ = strings.Cut(name, ".")
	if name == "backup" {
		name = "work"
	}
	if conn := network.Bare(name); conn != nil {
		return conn
	}
	return nil
}
