package scheduler

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/plane"
	"quartet/pkg/tracing"
)

const (
	// slowLook is the duration from which an evaluation counts as slow. One takes a
	// millisecond.
	slowLook = 250 * time.Millisecond
	// spareLookers is how many further evaluators may run for each configured one while
	// evaluations are delayed. Further delayed evaluations then delay others.
	spareLookers = 31
	// retryTerm is the pause after an evaluation that failed, such as while a plane
	// restarts. It doubles up to retryMost. A sweep would come later.
	retryTerm = time.Second
	retryMost = 8 * time.Second
)

// evaluators are the goroutines that evaluate agents. While an evaluation hangs in a
// plane another evaluator starts, so that one agent delays no other (SPEC D5).
type evaluators struct {
	mu          sync.Mutex
	want, total int // how many are configured, and how many run
	slow        int // how many of these are in an evaluation that takes longer than slowLook
}

// startEvaluators starts the goroutines that evaluate; running counts them.
func (s *Service) startEvaluators(ctx context.Context) {
	s.evaluators.want, s.evaluators.total = s.cfg.Lookers, s.cfg.Lookers
	for range s.cfg.Lookers {
		s.running.Add(1)
		go s.evaluate(ctx)
	}
}

// evaluate takes marked agents one by one and decides for each, until the set is closed or it
// is one evaluator too many.
func (s *Service) evaluate(ctx context.Context) {
	defer s.running.Done()
	for {
		k, ok := s.dirty.take()
		if !ok {
			return
		}
		leave := s.standIn(ctx)

		// Decide, in a span below the events that caused it.
		causes, ahead := s.dirty.causes(k)
		traced, span := s.span(ctx, k, causes)
		began := s.deps.Clock.Now()
		busy, err := s.decide(traced, k, ahead)
		s.metrics.took.Observe(s.deps.Clock.Now().Sub(began).Seconds())
		span.End()

		s.dirty.done(k, busy)
		s.scheduleRetry(ctx, k, err)
		if superfluous := leave(); superfluous {
			return
		}
	}
}

// span starts the span of an evaluation, below the first of the events that caused it and
// linked to the others. What only a sweep caused is not traced.
func (s *Service) span(ctx context.Context, k plane.Key, causes []string) (context.Context, trace.Span) {
	if !s.deps.Tracer.On() || len(causes) == 0 {
		return s.deps.Tracer.Start(ctx, "") // without a parent: it records nothing
	}
	return s.deps.Tracer.Under(ctx, causes[0], "schedule", trace.WithSpanKind(trace.SpanKindConsumer),
		tracing.LinkTo(causes[1:]...),
		trace.WithAttributes(attribute.String("quartet.namespace", k.Namespace),
			attribute.String("quartet.agent_id", k.ID)))
}

// note records a verdict in the span of its evaluation.
func note(ctx context.Context, v Verdict) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("quartet.decision", actionName(v.Action)),
		attribute.String("quartet.reason", v.Reason))
	if v.Action == ActionTick {
		span.SetAttributes(
			attribute.String("quartet.tick", strings.ToLower(strings.TrimPrefix(v.Tick.String(), "TICK_REASON_"))),
			attribute.String("quartet.work_item_id", v.ItemID))
	}
}

// standIn watches an evaluation and starts another evaluator if the evaluation takes longer than slowLook. The caller
// calls leave when the evaluation has ended; if it returns true, this evaluator is one too many and must stop.
func (s *Service) standIn(ctx context.Context) (leave func() bool) {
	evaluators := &s.evaluators
	delayed, ended := false, false // guarded by evaluators.mu

	// Start another evaluator after slowLook, unless enough of them are not delayed.
	cancel := clock.AfterFunc(s.deps.Clock, slowLook, func() {
		evaluators.mu.Lock()
		defer evaluators.mu.Unlock()
		if ended {
			return
		}
		delayed = true
		evaluators.slow++
		onTime := evaluators.total - evaluators.slow
		if onTime < evaluators.want && evaluators.total < evaluators.want*(1+spareLookers) {
			evaluators.total++
			s.running.Add(1) // added before the delayed evaluation is done
			go s.evaluate(ctx)
		}
	})

	return func() bool {
		cancel()
		evaluators.mu.Lock()
		defer evaluators.mu.Unlock()
		ended = true
		if !delayed {
			return false
		}
		evaluators.slow--
		if evaluators.total-evaluators.slow <= evaluators.want {
			return false
		}
		evaluators.total--
		return true
	}
}

// scheduleRetry has an agent evaluated again after a pause if err is not nil; NOT_FOUND is not
// retried, because the agent does not exist.
func (s *Service) scheduleRetry(ctx context.Context, k plane.Key, err error) {
	failed := err != nil && fault.From(err).Reason() != fault.NotFound

	// Count failures in a row.
	s.mu.Lock()
	failures := s.fails[k]
	if failed {
		s.fails[k] = failures + 1
		s.metrics.failures.WithLabelValues().Inc()
	} else {
		delete(s.fails, k)
	}
	s.mu.Unlock()

	if failed && ctx.Err() == nil {
		s.deps.Logger.Debug("an agent could not be decided; trying again", zap.String("agent_id", k.ID), zap.Error(err))
		pause := min(retryTerm<<min(failures, 8), retryMost)
		s.rechecks.Set(alarmKey("retry", k), s.deps.Clock.Now().Add(pause))
	}
}
