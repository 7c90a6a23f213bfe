package quota

import (
	"fmt"
	"strconv"
	"time"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

const (
	// streamsTotal is how many streams of all namespaces together may be open at a process.
	streamsTotal = 4000
	// streamAfter is after which time a client should try again to open a stream that was refused:
	// somebody has to close one first.
	streamAfter = 5 * time.Second
)

// credential returns a name for the credential of an actor, by which its streams are counted.
func credential(a rpc.Actor) string { return a.Namespace + "/" + a.Principal + "/" + a.KeyID }

// Stream counts a stream of an actor until the caller calls release. It returns OVERLOADED and a nil release if
// memory is short or too many streams are open at this process: a namespace may have as many as its quota (0: no
// limit), one credential half of that, and all namespaces together streamsTotal. Streams of services are always
// admitted and not counted.
func (g *Gate) Stream(a rpc.Actor) (release func(), err error) {
	if a.Role == rpc.RoleService {
		return func() {}, nil
	}
	if err := g.memory(a.Namespace); err != nil {
		return nil, err
	}
	limit := g.cfg.Limits.limit(a.Namespace, Streams)
	uses := []admission.Use{
		{Kind: "namespace", Name: a.Namespace, Limit: limit},
		{Kind: "credential", Name: credential(a), Limit: (limit + 1) / 2},
	}
	release, above, ok := g.streams.Take(1, uses...)
	if ok {
		return release, nil
	}
	g.refusals.WithLabelValues(Streams).Inc()
	who, of, most := "process", "this server", int64(streamsTotal)
	if above != nil {
		who, of, most = above.Kind, above.Kind+" "+above.Name, above.Limit
	}
	return nil, fault.Overloaded.New(fmt.Sprintf("%s has %d open streams, the most there may be; close one", of, most),
		"quota", Streams, "bound", who, "limit", strconv.FormatInt(most, 10)).WithRetryAfter(streamAfter)
}
