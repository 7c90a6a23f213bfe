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
	// maxBatchDeliveries and maxBatchBytes bound one batch. maxBatchBytes counts the bodies,
	// which are most of what a command holds, unless the trigger and its waits have long texts.
	maxBatchDeliveries = 1024
	maxBatchBytes      = 1 << 20
	// batchTerm is how long a batch waits for the journal.
	batchTerm = 30 * time.Second
	// maxLinks is how many traces of a batch its span links to.
	maxLinks = 32
)

var errBatchSize = errors.New("waiting: the numbers of outcomes and deliveries of a batch differ")

// batcher combines deliveries to the same address that carry no idempotency key. While one
// batch is on its way to disk, further deliveries wait and form the next one, which is a
// single line of the journal if all its deliveries do is count. A storm therefore costs as
// many lines as there are frames, whatever its rate (SPEC P7). Its zero value is ready.
type batcher struct {
	mu     sync.Mutex
	queues map[string]*deliveryQueue // by hash of the address; an entry exists while its worker runs
	// workers are the goroutines that write batches, one for each queue.
	workers sync.WaitGroup
}

// deliveryQueue holds the deliveries to one address that are not written yet, oldest first.
// The batcher's mu guards it.
type deliveryQueue struct{ waiting []*pendingDelivery }

// pendingDelivery is a delivery whose caller waits. resp and err are set before done is
// closed.
type pendingDelivery struct {
	req  *waitingv1.DeliverTriggerRequest
	resp *waitingv1.DeliverTriggerResponse
	err  error
	done chan struct{}
	// traceparent is the delivery's trace, or empty.
	traceparent string
}

// deliver adds a delivery to the next batch and waits until that is on disk. When ctx ends
// first the outcome is unknown: the delivery may still be counted.
func (b *batcher) deliver(ctx context.Context, s *Service, to address, req *waitingv1.DeliverTriggerRequest) (
	*waitingv1.DeliverTriggerResponse, error,
) {
	p := &pendingDelivery{req: req, done: make(chan struct{})}
	if s.deps.Tracer.On() {
		p.traceparent = tracing.Carried(ctx)
	}
	// Queues are by address and not by trigger: after a rotation the old address must not
	// get the response of the new one.
	hash := id.Hash(req.GetToken())
	b.mu.Lock()
	if b.queues == nil {
		b.queues = map[string]*deliveryQueue{}
	}
	q := b.queues[hash]
	if q == nil {
		q = &deliveryQueue{}
		b.queues[hash] = q
		b.workers.Go(func() { b.work(s, to, hash, q) })
	}
	q.waiting = append(q.waiting, p)
	b.mu.Unlock()
	select {
	case <-p.done:
		return p.resp, p.err
	case <-ctx.Done():
		return nil, fault.Storage.New("the deadline passed while the delivery was being written to the journal; it "+
			"may have been counted", "outcome", "unknown").WithCause(ctx.Err())
	}
}

// work writes the queue batch by batch until it is empty, then removes it.
func (b *batcher) work(s *Service, to address, hash string, q *deliveryQueue) {
	for {
		b.mu.Lock()
		batch := q.next()
		if len(batch) == 0 {
			delete(b.queues, hash)
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		s.writeBatch(to, hash, batch)
	}
}

// writeBatch writes a batch and answers its callers. One that is more than a command may hold is
// written in halves, so that no delivery is refused because of others.
func (s *Service) writeBatch(to address, hash string, batch []*pendingDelivery) {
	responses, err := s.deliverBatch(to, hash, batch)
	if n := len(batch) / 2; n > 0 && errors.Is(err, fault.TooLarge) {
		s.writeBatch(to, hash, batch[:n])
		s.writeBatch(to, hash, batch[n:])
		return
	}
	for i, p := range batch {
		if p.err = err; err == nil {
			p.resp = responses[i]
		}
		close(p.done)
	}
}

// next removes the next batch from the queue and returns it. It is empty when no delivery waits.
func (q *deliveryQueue) next() []*pendingDelivery {
	n, bytes := 0, 0
	for n < len(q.waiting) && n < maxBatchDeliveries && bytes < maxBatchBytes {
		bytes += len(q.waiting[n].req.GetBody())
		n++
	}
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return batch
}

// deliverBatch decides and writes a batch as one command and returns a response for each
// delivery, in order.
func (s *Service) deliverBatch(to address, hash string, batch []*pendingDelivery) ([]*waitingv1.DeliverTriggerResponse,
	error,
) {
	ctx, cancel := context.WithTimeout(context.Background(), batchTerm)
	defer cancel()
	reqs := make([]*waitingv1.DeliverTriggerRequest, len(batch))
	var traces []string
	for i, p := range batch {
		reqs[i] = p.req
		if p.traceparent != "" {
			traces = append(traces, p.traceparent)
		}
	}
	if len(traces) > 0 { // the span is a child of the first trace and links to the others
		var span trace.Span
		ctx, span = s.deps.Tracer.Under(ctx, traces[0], "deliver together",
			tracing.LinkTo(traces[1:min(len(traces), maxLinks)]...))
		defer span.End()
	}
	responses, err := plane.Do(ctx, s.engine, plane.Command[*State, []*waitingv1.DeliverTriggerResponse]{
		Method: "DeliverTrigger", AgentID: to.agent.ID, Actor: outside(to),
		Decide: func(st *State, env journal.Env) (d journal.Decision[[]*waitingv1.DeliverTriggerResponse], err error) {
			d.Events, err = decideDeliver(st, env, to, hash, reqs)
			return d, err
		},
		Answer: func(events []*journal.Event) ([]*waitingv1.DeliverTriggerResponse, error) {
			return outcomes(events), nil
		},
	})
	if err == nil && len(responses) != len(batch) {
		return nil, fault.Internal(errBatchSize)
	}
	return responses, err
}
