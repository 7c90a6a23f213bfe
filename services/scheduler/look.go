package scheduler

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

const (
	// slowLook is when a look counts as held up. One takes a millisecond.
	slowLook = 250 * time.Millisecond
	// spareLookers is how many looks may be held up for each looker before they
	// are in the way of others.
	spareLookers = 31
	// retryTerm is the pause after a look that failed, such as while a plane
	// starts anew; it doubles up to retryMost. The sweep would come too, later.
	retryTerm = time.Second
	retryMost = 8 * time.Second
)

// lookers are the goroutines that look at agents. One agent's trouble delays no
// other (SPEC D5): while a look hangs in a plane, another looker stands in.
type lookers struct {
	mu          sync.Mutex
	want, total int
	slow        int
}

func (s *Service) startLookers(ctx context.Context) {
	s.lookers.want, s.lookers.total = s.cfg.Lookers, s.cfg.Lookers
	for range s.cfg.Lookers {
		s.running.Add(1)
		go s.look(ctx)
	}
}

// look takes marked agents one by one and decides for each.
func (s *Service) look(ctx context.Context) {
	defer s.running.Done()
	for {
		k, ok := s.dirty.take()
		if !ok {
			return
		}
		ended := s.standIn(ctx)
		causes, ahead := s.dirty.causes(k)
		traced, span := s.span(ctx, k, causes)
		began := time.Now()
		busy, err := s.decide(traced, k, ahead)
		s.metrics.took.Observe(time.Since(began).Seconds())
		span.End()
		s.dirty.done(k, busy)
		s.settle(ctx, k, err)
		if ended() {
			return
		}
	}
}

// span is a look's part of the trace of what had the agent looked at. Several
// events may have: it is below the first and linked to the others. What only a
// sweep looks at is not traced.
func (s *Service) span(ctx context.Context, k key, causes []string) (context.Context, trace.Span) {
	if !s.deps.Tracer.On() || len(causes) == 0 {
		return s.deps.Tracer.Start(ctx, "")
	}
	return s.deps.Tracer.Under(ctx, causes[0], "schedule", trace.WithSpanKind(trace.SpanKindConsumer), tracing.LinkTo(causes[1:]...),
		trace.WithAttributes(attribute.String("quartet.namespace", k.namespace), attribute.String("quartet.agent_id", k.id)))
}

// note tells a look's span what came of it.
func note(ctx context.Context, v Verdict) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("quartet.decision", actionName(v.Action)), attribute.String("quartet.reason", v.Reason))
	if v.Action == ActionTick {
		span.SetAttributes(attribute.String("quartet.tick", strings.ToLower(strings.TrimPrefix(v.Tick.String(), "TICK_REASON_"))), attribute.String("quartet.work_item_id", v.ItemID))
	}
}

// standIn begins to watch a look. When it is held up another looker starts.
// ended says that the look is over, and answers whether this looker is now one
// too many.
func (s *Service) standIn(ctx context.Context) (ended func() bool) {
	l := &s.lookers
	held, over := false, false
	watch := time.AfterFunc(slowLook, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if over {
			return
		}
		held = true
		l.slow++
		if l.total-l.slow < l.want && l.total < l.want*(1+spareLookers) {
			l.total++
			s.running.Add(1) // before the look that is held up is done
			go s.look(ctx)
		}
	})
	return func() bool {
		watch.Stop()
		l.mu.Lock()
		defer l.mu.Unlock()
		over = true
		if !held {
			return false
		}
		l.slow--
		if l.total-l.slow <= l.want {
			return false
		}
		l.total--
		return true
	}
}

// settle has an agent looked at again soon if it could not be decided.
func (s *Service) settle(ctx context.Context, k key, err error) {
	s.mu.Lock()
	n := s.fails[k]
	if err == nil || fault.From(err).Reason() == fault.NotFound {
		delete(s.fails, k)
	} else {
		s.fails[k] = n + 1
		s.metrics.failures.WithLabelValues().Inc()
	}
	s.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		return
	}
	s.deps.Logger.Debug("an agent could not be decided; trying again", zap.String("agent_id", k.id), zap.Error(err))
	if fault.From(err).Reason() != fault.NotFound {
		pause := min(retryTerm<<min(n, 8), retryMost)
		s.rechecks.Set(alarmKey("retry", k), s.deps.Clock.Now().Add(pause))
	}
}
