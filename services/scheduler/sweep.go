package scheduler

import (
	"context"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// sweepPace bounds what a sweep costs: it marks one agent in this time on average, so that 100
// 000 idle agents are evaluated within 67 minutes and 25 a second, whatever their number.
// Journals lose no event; a sweep is a safeguard against errors of this program. The first
// one, after a start, is not paced (SPEC X14).
const sweepPace = 40 * time.Millisecond

// sweep marks all agents for evaluation, at the start and then periodically, until ctx ends: a
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

// sweepOnce marks all agents, page by page. After each page but the last it waits pace times
// the number of the page's agents. It stops at the first error, or when ctx ends.
func (s *Service) sweepOnce(ctx context.Context, pace time.Duration) error {
	token := ""
	for {
		page, err := s.deps.Agents.GetFacts(ctx, &agentv1.GetFactsRequest{PageToken: token})
		if err != nil {
			return err
		}
		for _, f := range page.GetFacts() {
			s.dirty.markLow(plane.KeyOf(f.GetNamespace(), f.GetAgent().GetAgentId()))
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
		if pace > 0 && !s.pause(ctx, s.deps.Clock.Now().Add(time.Duration(len(page.GetFacts()))*pace)) {
			return ctx.Err()
		}
	}
}
