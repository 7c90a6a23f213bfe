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
	mu sync.RWMutex
	at map[owner]string // "address name"
}

// directTerm is how long the instance of affinity may take before another one is called. A
// frozen instance does not respond, and only the others know who replaced it.
const directTerm = 2 * time.Second

type owner struct{ namespace, agent string }

func (a *affinity) find(o owner) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.at[o]
}

func (a *affinity) learn(o owner, at string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == nil || len(a.at) >= maxAffinity {
		a.at = map[owner]string{}
	}
	if at == "" {
		delete(a.at, o)
		return
	}
	a.at[o] = at
}

// invoke calls a service of another process, at the instance that responded for the
// same agent before, if that is known. If that one does not respond within directTerm,
// or does not hold the agent any more, the call is repeated at another one.
func (c *Conn) invoke(ctx context.Context, method string, args, reply any, opts []grpc.CallOption) error {
	q, ok := args.(interface{ GetAgentId() string })
	if !ok || q.GetAgentId() == "" {
		return c.ClientConn.Invoke(ctx, method, args, reply, opts...)
	}
	o := owner{agent: q.GetAgentId()}
	if in, ok := ctx.Value(callerKey{}).(*caller); ok {
		o.namespace = in.actor.Namespace
	}
	var header metadata.MD
	opts = append(opts, grpc.Header(&header))
	if at := c.affinity.find(o); at != "" {
		addr, name, _ := strings.Cut(at, " ")
		if conn := c.network.holder(addr, name); conn != nil {
			args = identified(args, c.network.cfg.NewID)
			direct, cancel := context.WithTimeout(ctx, directTerm)
			err := conn.Invoke(direct, method, args, reply, opts...)
			cancel()
			if !unreached(ctx, err) {
				c.observeOwner(o, header)
				return err
			}
			c.affinity.learn(o, "")
		}
	}
	err := c.ClientConn.Invoke(ctx, method, args, reply, opts...)
	c.observeOwner(o, header)
	return err
}

func (c *Conn) observeOwner(o owner, header metadata.MD) {
	if at := header.Get(holderKey); len(at) > 0 {
		c.affinity.learn(o, at[0])
	}
}

// identified returns a copy of args with a new request id, or args itself if it has an id or
// takes none. With the id the call can be repeated at another instance.
func identified(args any, newID func(string) string) any {
	req, ok := args.(proto.Message)
	if !ok || requestField(req) == nil || requestID(req) != "" {
		return args
	}
	own := proto.Clone(req)
	setRequestID(own, newID)
	return own
}

// unreached reports whether a call at one instance is to be repeated at another: the instance could
// not be reached, took longer than directTerm, or does not hold the partition any more. It is false
// once ctx, the caller's context, has ended.
func unreached(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	e := fault.From(err)
	return e.Code() == codes.DeadlineExceeded || e.Code() == codes.Unavailable && (errors.Is(err, fault.PartitionMoved) || len(e.Metadata()) == 0)
}
