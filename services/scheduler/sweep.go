package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

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
			s.mu.Lock()
			s.swept = true
			s.mu.Unlock()
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
	listed := true
	for n := 0; n < s.workPartitions && listed; n++ {
		if err := s.sweepWork(ctx, n, pace); err != nil {
			if ctx.Err() != nil {
				return err
			}
			s.deps.Logger.Warn("the agents with pending work cannot be listed; all agents are evaluated",
				zap.Int("partition", n), zap.Error(err))
			listed = false
		}
	}
	token := ""
	for {
		page, err := s.listFacts(ctx, &agentv1.GetFactsRequest{PageToken: token, PendingOnly: listed})
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
		page, err := s.listPending(ctx, &workv1.ListPendingAgentsRequest{Partition: int32(partition), PageToken: token})
		if err != nil {
			return err
		}
		marked := 0
		for _, a := range page.GetAgents() {
			k := plane.KeyOf(a.GetNamespace(), a.GetAgentId())
			if at := a.GetRecheckAt(); at != nil && at.AsTime().After(s.deps.Clock.Now()) {
				key := alarmKey("recheck", k)
				// an evaluation may have set an earlier one meanwhile
				if set, has := s.rechecks.At(key); !has || at.AsTime().Before(set) {
					s.rechecks.Set(key, at.AsTime())
				}
				continue
			}
			s.dirty.markLow(k)
			marked++
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

// listFacts calls GetFacts within listTerm.
func (s *Service) listFacts(ctx context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, listTerm)
	defer cancel()
	return s.deps.Agents.GetFacts(ctx, req)
}

// listPending calls ListPendingAgents within listTerm.
func (s *Service) listPending(ctx context.Context, req *workv1.ListPendingAgentsRequest) (
	*workv1.ListPendingAgentsResponse, error,
) {
	ctx, cancel := context.WithTimeout(ctx, listTerm)
	defer cancel()
	return s.deps.Work.ListPendingAgents(ctx, req)
}

// rest waits pace times n. It returns an error when ctx ends.
func (s *Service) rest(ctx context.Context, pace time.Duration, n int) error {
	if pace > 0 && n > 0 && !s.pause(ctx, s.deps.Clock.Now().Add(time.Duration(n)*pace)) {
		return ctx.Err()
	}
	return nil
}
