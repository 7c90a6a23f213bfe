package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/scheduler"
)

// paused returns a site whose agent keeper has something to do and may not yet.
func paused(t *testing.T) (*site, *scheduler.Service) {
	t.Helper()
	s := newSite(t)
	s.spawn("keeper")
	must.Value(s.agents.PauseAgent(s.as(rpc.RoleOperator), &agentv1.PauseAgentRequest{AgentId: "keeper"}))(t)
	s.create("keeper", "ship")
	sc := s.schedule()
	sc.Quiesce()
	return s, sc
}

// A look begins before the event that has it begin is on disk, and what it decides
// is there after it.
func TestD1_ALookDoesNotWaitForTheDisk(t *testing.T) {
	s, sc := paused(t)
	before := s.looking.aheads.Load()

	s.agentLog.Inject(journaltest.Late)
	errs := make(chan error, 1)
	go func() {
		_, err := s.agents.ResumeAgent(s.as(rpc.RoleOperator), &agentv1.ResumeAgentRequest{AgentId: "keeper"})
		errs <- err
	}()
	<-s.agentLog.Held()
	s.eventually(func() bool { return s.looking.aheads.Load() > before })
	require.Empty(t, errs)
	s.agentLog.Release()
	require.NoError(t, <-errs)
	s.eventually(func() bool { return s.facts("keeper").GetTickPending() })
	sc.Quiesce()
	require.Equal(t, map[agentv1.TickReason]int{agentv1.TickReason_TICK_REASON_PICK_QUEUED: 1}, s.ticks("keeper"))
}

// What a look saw ahead may be taken back: the agent is looked at again, and its
// work is not stranded until the next sweep (SPEC D1).
func TestD1_WhatWasSeenAheadAndLost(t *testing.T) {
	s, _ := paused(t)

	s.looking.arm()
	must.Value(s.agents.ResumeAgent(s.as(rpc.RoleOperator), &agentv1.ResumeAgentRequest{AgentId: "keeper"}))(t)
	<-s.looking.begun
	// The look reads a message that is never stored, and so decides nothing.
	s.agentLog.Inject(journaltest.HeldRefused)
	errs := make(chan error, 1)
	go func() {
		_, err := s.agents.EnqueueMessage(s.as(rpc.RoleOperator), &agentv1.EnqueueMessageRequest{
			AgentId: "keeper", Text: "hello",
		})
		errs <- err
	}()
	<-s.agentLog.Held()
	close(s.looking.let)
	<-time.After(50 * time.Millisecond) // for the look to see it
	s.agentLog.Release()
	require.ErrorIs(t, <-errs, fault.Storage)
	s.eventually(func() bool { return s.facts("keeper").GetTickPending() })
}
