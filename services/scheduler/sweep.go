package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// sweepPace bounds what a sweep costs: it marks one agent in this time on average, so at most 25
// are evaluated a second, and 100 000 within 67 minutes. Journals lose no event; a sweep is a
// safeguard against errors of this program. The first one, after a start, is not paced (SPEC X14).
const sweepPace = 40 * time.Millisecond

// sweep marks agents for evaluation, at the start and then periodically, until ctx ends: a
// lost event costs time, never a wake (SPEC D1, X14). A sweep that failed is repeated after at
// most a second.
func (s *Service) sweep(ctx context.Context) {
	defer s.running.Done()
	pace := time.Duration(0)
	for {
		began := s.deps.Clock.Now()
		err := s.sweepOnce(ctx, pace)
		next := began.Add(s.cfg.Sweep)
		if err == nil {
			s.swept.Store(true)
			pace = sweepPace
		} else {
			next = s.deps.Clock.Now().Add(min(s.cfg.Sweep, time.Second))
		}
		if !s.pause(ctx, next) {
			return
		}
	}
}

// pause waits until a time. It returns false when the service stops.
func (s *Service) pause(ctx context.Context, until time.Time) bool {
	t := s.deps.Clock.TimerAt(until)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C():
		return true
	}
}

// sweepOnce marks the agents that may need a decision, by what the work plane and the agent plane know of them. It
// does not read the others: for them Plan would decide nothing, or idle, which is recorded already, perhaps for
// another reason. If a partition of the work plane cannot be listed, it marks all agents. It stops at the first error
// of the agent plane, or when ctx ends.
func (s *Service) sweepOnce(ctx context.Context, pace time.Duration) error {
	// Mark the agents with pending work.
	workListed := true
	for n := 0; n < s.workPartitions && workListed; n++ {
		if err := s.sweepWork(ctx, n, pace); err != nil {
			if ctx.Err() != nil {
				return err
			}
			s.deps.Logger.Warn("the agents with pending work cannot be listed; all agents are evaluated",
				zap.Int("partition", n), zap.Error(err))
			workListed = false
		}
	}

	// Mark those about which the agent plane knows something to decide, or all.
	token := ""
	for {
		req := &agentv1.GetFactsRequest{PageToken: token, PendingOnly: workListed}
		page, err := list(ctx, s.deps.Agents.GetFacts, req)
		if err != nil {
			return err
		}
		for _, f := range page.GetFacts() {
			s.dirty.markLow(plane.KeyOf(f.GetNamespace(), f.GetAgent().GetAgentId()))
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
		if err := s.rest(ctx, pace, len(page.GetFacts())); err != nil {
			return err
		}
	}
}

// sweepWork marks the agents of a partition of the work plane whose work may call for a turn. For those that only
// have reminders in the future it sets the timer instead.
func (s *Service) sweepWork(ctx context.Context, partition int, pace time.Duration) error {
	token := ""
	for {
		page, err := list(ctx, s.deps.Work.ListPendingAgents, &workv1.ListPendingAgentsRequest{
			Partition: int32(partition), PageToken: token,
		})
		if err != nil {
			return err
		}
		marked := 0
		for _, a := range page.GetAgents() {
			k := plane.KeyOf(a.GetNamespace(), a.GetAgentId())
			reminder := a.GetRecheckAt()
			if reminder == nil || !reminder.AsTime().After(s.deps.Clock.Now()) {
				s.dirty.markLow(k)
				marked++
				continue
			}

			// Set the timer of the reminder, unless an evaluation has set an earlier one meanwhile.
			key := alarmKey("recheck", k)
			alarm, isSet := s.rechecks.At(key)
			if !isSet || reminder.AsTime().Before(alarm) {
				s.rechecks.Set(key, reminder.AsTime())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
		if err := s.rest(ctx, pace, marked); err != nil {
			return err
		}
	}
}

// listTerm bounds the call for a page of a sweep.
const listTerm = 10 * time.Second

// list makes a call for a page of a sweep, within listTerm.
func list[Req, Resp any](ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error),
	req Req,
) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, listTerm)
	defer cancel()
	return call(ctx, req)
}

// rest waits pace times n. It returns an error when ctx ends.
func (s *Service) rest(ctx context.Context, pace time.Duration, n int) error {
	if pace > 0 && n > 0 && !s.pause(ctx, s.deps.Clock.Now().Add(time.Duration(n)*pace)) {
		return ctx.Err()
	}
	return nil
}
