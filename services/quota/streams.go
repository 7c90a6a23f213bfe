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
	// streamsTotal is how many streams may be open at a process, of all namespaces.
	streamsTotal = 4000
	// streamAfter is the time after which a stream that was refused may be opened again: somebody
	// has to close one first.
	streamAfter = 5 * time.Second
)

// credential names the credential of an actor, to count what it uses.
func credential(a rpc.Actor) string { return a.Namespace + "/" + a.Principal + "/" + a.KeyID }

// Stream counts a stream of an actor until release is called, or refuses it with OVERLOADED: a namespace has
// the streams of its quota, one credential half of them, and all namespaces together streamsTotal. Streams of
// services themselves are not counted.
func (g *Gate) Stream(a rpc.Actor) (release func(), err error) {
	if a.Role == rpc.RoleService {
		return func() {}, nil
	}
	if err := g.memory(a.Namespace); err != nil {
		return nil, err
	}
	limit := g.cfg.Limits.limit(a.Namespace, Streams)
	uses := []admission.Use{{Kind: "namespace", Name: a.Namespace, Limit: limit}, {Kind: "credential", Name: credential(a), Limit: (limit + 1) / 2}}
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
