package waiting

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/tracing"
)

const (
	// most of a crowd that is decided at once, and most bytes of their bodies:
	// well below what a command may hold.
	crowdSize  = 1024
	crowdBytes = 1 << 20
	// crowdTerm is how long a crowd waits for the journal.
	crowdTerm = 30 * time.Second
	// maxLinks is how many traces of a crowd are named.
	maxLinks = 32
)

var errCrowd = errors.New("waiting: the deliveries of a crowd and their outcomes are not as many")

// crowds gather deliveries to the same address that carry no key of their own.
// While some are on their way to disk the others wait, and then go together, as
// one line of the journal if all they do is count. A storm costs as many lines
// as there are frames, whatever its rate (SPEC P7).
type crowds struct {
	mu      sync.Mutex
	of      map[string]*crowd // by trigger
	leading sync.WaitGroup
}

// crowd is who waits for the journal. It is there while somebody leads it.
type crowd struct{ waiting []*arrival }

type arrival struct {
	req  *waitingv1.DeliverTriggerRequest
	resp *waitingv1.DeliverTriggerResponse
	err  error
	done chan struct{}
	// traceparent is the delivery's trace, if it has one.
	traceparent string
}

func (c *crowds) join(ctx context.Context, s *Service, to address, req *waitingv1.DeliverTriggerRequest) (*waitingv1.DeliverTriggerResponse, error) {
	one := &arrival{req: req, done: make(chan struct{})}
	if s.deps.Tracer.On() {
		one.traceparent = tracing.Carried(ctx)
	}
	// Addresses, and not triggers: who used the old one of a rotated trigger
	// must not be answered with those who use the new one.
	hash := id.Hash(req.GetToken())
	c.mu.Lock()
	if c.of == nil {
		c.of = map[string]*crowd{}
	}
	all := c.of[hash]
	if all == nil {
		all = &crowd{}
		c.of[hash] = all
		c.leading.Go(func() { c.lead(s, to, hash, all) })
	}
	all.waiting = append(all.waiting, one)
	c.mu.Unlock()
	select {
	case <-one.done:
		return one.resp, one.err
	case <-ctx.Done():
		return nil, fault.Storage.New("the deadline passed while the delivery was on its way to the journal; it may have been counted", "outcome", "unknown").WithCause(ctx.Err())
	}
}

// lead takes the crowd to the journal, part by part, until nobody waits.
func (c *crowds) lead(s *Service, to address, hash string, all *crowd) {
	for {
		c.mu.Lock()
		part := all.take()
		if len(part) == 0 {
			delete(c.of, hash)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		answers, err := s.deliverAll(to, hash, part)
		for i, one := range part {
			if one.err = err; err == nil {
				one.resp = answers[i]
			}
			close(one.done)
		}
	}
}

// take removes and gives those who go next.
func (all *crowd) take() []*arrival {
	n, bytes := 0, 0
	for n < len(all.waiting) && n < crowdSize && bytes < crowdBytes {
		bytes += len(all.waiting[n].req.GetBody())
		n++
	}
	part := all.waiting[:n:n]
	all.waiting = all.waiting[n:]
	return part
}

func (s *Service) deliverAll(to address, hash string, part []*arrival) ([]*waitingv1.DeliverTriggerResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), crowdTerm)
	defer cancel()
	reqs := make([]*waitingv1.DeliverTriggerRequest, len(part))
	var traces []string
	for i, one := range part {
		reqs[i] = one.req
		if one.traceparent != "" {
			traces = append(traces, one.traceparent)
		}
	}
	if len(traces) > 0 { // what follows is the first one's, and linked to the others
		var span trace.Span
		ctx, span = s.deps.Tracer.Under(ctx, traces[0], "deliver together", tracing.LinkTo(traces[1:min(len(traces), maxLinks)]...))
		defer span.End()
	}
	answers, err := plane.Do(ctx, s.engine, plane.Command[*State, []*waitingv1.DeliverTriggerResponse]{
		Method: "DeliverTrigger", AgentID: to.agent.id, Actor: outside(to),
		Decide: func(st *State, env journal.Env) (d journal.Decision[[]*waitingv1.DeliverTriggerResponse], err error) {
			d.Events, err = decideDeliver(st, env, to, hash, reqs)
			return d, err
		},
		Answer: func(events []*journal.Event) ([]*waitingv1.DeliverTriggerResponse, error) {
			return outcomes(events), nil
		},
	})
	if err == nil && len(answers) != len(part) {
		return nil, fault.Internal(errCrowd)
	}
	return answers, err
}
