package rpc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
)

// holderKey is the header with which an instance that forwarded a call names the one that
// responded, so that the caller can call that directly the next time.
const holderKey = "quartet-holder"

// maxAffinity bounds what a connection remembers. Beyond it everything is forgotten.
const maxAffinity = 100_000

// affinity remembers which instance of a service responded for an agent. It may be outdated:
// an instance forwards calls for agents that it does not hold, and names the instance that
// responded (holderKey).
type affinity struct {
	mu        sync.RWMutex
	instances map[owner]string // "address name"
	// split is true once an instance was named: the service has partitions, whose methods have no long polls.
	split bool
}

// directTerm is how long the first instance of a service with partitions may take before another one is called. A
// frozen instance does not respond, and only the others know who replaced it. Each further one may take twice as long
// as the one before, since a call may take its time, such as a search.
const directTerm = 2 * time.Second

type owner struct{ namespace, agent string }

// instanceOf returns the instance that responded for an agent, as "address name"; "" if none is known.
func (a *affinity) instanceOf(o owner) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.instances[o]
}

// remember records that an instance, "address name", responded for an agent.
func (a *affinity) remember(o owner, instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.instances == nil || len(a.instances) >= maxAffinity {
		a.instances = map[owner]string{}
	}
	a.instances[o], a.split = instance, true
}

// forget removes what was remembered of an agent.
func (a *affinity) forget(o owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.instances, o)
}

// isSplit reports whether the service has partitions, as far as is known.
func (a *affinity) isSplit() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.split
}

// invoke calls a service of another process, at the instance that responded for the same agent before, if that is
// known. If that one does not respond within directTerm, or does not hold the agent any more, invoke repeats the call
// over the connection to the service, which calls its instances in rotation, a frozen one too. If the service has
// partitions, invoke repeats a call there as well until an instance responds in time.
func (c *Conn) invoke(ctx context.Context, method string, args, reply any, opts []grpc.CallOption) error {
	q, ok := args.(interface{ GetAgentId() string })
	if !ok || q.GetAgentId() == "" {
		return c.ClientConn.Invoke(ctx, method, args, reply, opts...)
	}
	o := owner{agent: q.GetAgentId()}
	if in, ok := ctx.Value(callerKey{}).(*caller); ok {
		o.namespace = in.actor.Namespace
	}

	// Call the instance that responded before.
	var header metadata.MD
	opts = append(opts, grpc.Header(&header))
	if instance := c.affinity.instanceOf(o); instance != "" {
		addr, name, _ := strings.Cut(instance, " ")
		if conn := c.network.holder(addr, name); conn != nil {
			args = identified(args, c.network.cfg.NewID)
			late, err := attempt(ctx, directTerm, conn, method, args, reply, opts)
			if !late && !callElsewhere(ctx, err) {
				c.observeOwner(o, header)
				return err
			}
			c.affinity.forget(o)
		}
	}

	// Call any instance.
	if !c.affinity.isSplit() {
		err := c.ClientConn.Invoke(ctx, method, args, reply, opts...)
		c.observeOwner(o, header)
		return err
	}
	args = identified(args, c.network.cfg.NewID)
	for term := directTerm; ; term *= 2 {
		if late, err := attempt(ctx, term, c.ClientConn, method, args, reply, opts); !late {
			c.observeOwner(o, header)
			return err
		}
	}
}

// attempt makes a call and gives it up after a duration; late reports that it did. The callee receives only
// the caller's deadline and not that duration, at whose end it would answer that it ran out of time.
func attempt(ctx context.Context, timeout time.Duration, conn grpc.ClientConnInterface, method string, args, reply any,
	opts []grpc.CallOption,
) (late bool, err error) {
	attemptCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	term := time.AfterFunc(timeout, cancel)
	defer term.Stop()
	err = conn.Invoke(attemptCtx, method, args, reply, opts...)
	return err != nil && attemptCtx.Err() != nil && ctx.Err() == nil, err
}

// observeOwner remembers the instance that a response names, if it names one.
func (c *Conn) observeOwner(o owner, header metadata.MD) {
	if instance := header.Get(holderKey); len(instance) > 0 {
		c.affinity.remember(o, instance[0])
	}
}

// identified returns a copy of args with a new request id, or args itself if it has an id or
// takes none. With the id the call can be repeated at another instance.
func identified(args any, newID func(string) string) any {
	req, ok := args.(proto.Message)
	if !ok || requestField(req) == nil || requestID(req) != "" {
		return args
	}
	copied := proto.Clone(req)
	setRequestID(copied, newID)
	return copied
}

// callElsewhere reports whether a call at one instance is to be repeated at another: the instance could not be reached,
// does not hold the partition any more, or ran out of time before the caller did. It is false once ctx, the caller's
// context, has ended.
func callElsewhere(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	e := fault.From(err) // without metadata if it is of the connection
	return e.Code() == codes.DeadlineExceeded || e.Code() == codes.Unavailable &&
		(errors.Is(err, fault.PartitionMoved) || len(e.Metadata()) == 0)
}
