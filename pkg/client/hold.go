package client

import (
	"context"
	"errors"
	"io"
	"time"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	// The bounds of a heartbeat's pause: a third of a lease of 30 s, and not more
	// often than once a second.
	longestBeat  = 10 * time.Second
	shortestBeat = time.Second
)

// beat is a third of the lease's term. Both ends of it are the server's times,
// so clocks that differ do not matter.
func beat(t *agentv1.Turn) time.Duration {
	if t.GetLeaseExpiresAt() == nil || t.GetStartedAt() == nil {
		return longestBeat
	}
	return min(max(t.GetLeaseExpiresAt().AsTime().Sub(t.GetStartedAt().AsTime())/3, shortestBeat), longestBeat)
}

// renew keeps the lease until ctx ends or the server says that there is none.
// A server that is away is asked more often: after its restart it gives every
// lease a whole term (SPEC X12), so only its word ends the turn.
func (t *Turn) renew(ctx context.Context, every time.Duration) {
	pause := every
	for {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		one, cancel := context.WithTimeout(ctx, every)
		_, err := t.client.Agents.RenewTurn(t.as(one), &agentv1.RenewTurnRequest{
			AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(),
		})
		cancel()
		switch {
		case err == nil:
			pause = every
		case ctx.Err() != nil:
			return
		case over(err):
			_ = t.lost(ctx, nil) // it tells the handler
			return
		default:
			pause = min(every, shortestBeat)
		}
	}
}

// watch hears at once what happens to the turn: its end, and messages that will
// be handed over by the next round (SPEC A7, A9). A server without WatchTurn
// tells the end to renew.
func (t *Turn) watch(ctx context.Context, announce func([]*agentv1.Message)) {
	pacer := newPacer()
	for ctx.Err() == nil {
		err := t.watchOnce(ctx, pacer.Reset, announce)
		switch {
		case errors.Is(err, fault.Unimplemented):
			return
		case over(err):
			_ = t.lost(ctx, nil)
			return
		case errors.Is(err, io.EOF):
			return
		}
		if pacer.Wait(ctx) != nil {
			return
		}
	}
}

// watchOnce reads one stream. io.EOF: the turn ended, and was judged.
func (t *Turn) watchOnce(ctx context.Context, alive func(), announce func([]*agentv1.Message)) error {
	s, err := t.client.Agents.WatchTurn(t.as(ctx), &agentv1.WatchTurnRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(),
	})
	if err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return fault.RunStale.New("the watch ended with its turn")
		}
		if err != nil {
			return err
		}
		alive()
		if m.GetEnded() != nil {
			_ = t.lost(ctx, m.GetEnded())
			return io.EOF
		}
		if announce != nil && len(m.GetInterjections()) > 0 {
			announce(m.GetInterjections())
		}
	}
}
