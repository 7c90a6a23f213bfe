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
	maxHeartbeat = 10 * time.Second
	minHeartbeat = time.Second
)

// heartbeat returns a third of the lease's term, but at least minHeartbeat and at most
// maxHeartbeat. Both ends of the term are times of the server, so differing clocks do not
// matter.
func heartbeat(t *agentv1.Turn) time.Duration {
	if t.GetLeaseExpiresAt() == nil || t.GetStartedAt() == nil {
		return maxHeartbeat
	}
	return min(max(t.GetLeaseExpiresAt().AsTime().Sub(t.GetStartedAt().AsTime())/3, minHeartbeat), maxHeartbeat)
}

// renew renews the lease until ctx ends or the server reports the end of the turn. While the
// server is unreachable it tries more often: after a restart the server grants every lease a
// full term (SPEC X12), so the turn goes on until the server says otherwise.
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
			_ = t.lost(ctx, nil) // cancels the handler
			return
		default:
			pause = min(every, minHeartbeat)
		}
	}
}

// watch receives what happens to the turn: its end, and messages that the next round will
// receive (SPEC A7, A9). With a server without WatchTurn, renew learns of the end.
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

// watchOnce reads one stream, and calls alive with each message. It returns io.EOF if the server
// reported the end of the turn, and RUN_STALE if the server closed the stream without reporting it.
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
