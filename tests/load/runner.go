package load

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Runner takes turns and finishes them, so that messages move while the server
// is killed.
type Runner struct {
	agents agentv1.AgentServiceClient
	name   string
	Turns  int
}

// NewRunner prepares one.
func NewRunner(conn grpc.ClientConnInterface, name string) *Runner {
	return &Runner{agents: agentv1.NewAgentServiceClient(conn), name: name}
}

// Run takes turns until ctx ends, and then returns nil.
func (r *Runner) Run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		req := &agentv1.AcquireTurnRequest{
			RequestId: fmt.Sprintf("%s-%d", r.name, n), RunnerId: r.name,
			Wait: durationpb.New(2 * time.Second),
		}
		got, err := Again(ctx, func(ctx context.Context) (*agentv1.AcquireTurnResponse, error) {
			return r.agents.AcquireTurn(ctx, req)
		})
		if err != nil {
			return unlessOver(ctx, fmt.Errorf("acquire: %w", err))
		}
		if got.GetPending() {
			continue
		}
		t := got.GetTurn()
		if t.GetState() != agentv1.TurnState_TURN_STATE_OPEN {
			continue // the answer was lost, and its turn has ended since
		}
		if _, err := Again(ctx, func(ctx context.Context) (*agentv1.FinishTurnResponse, error) {
			return r.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
				AgentId: t.GetAgentId(), TurnId: t.GetTurnId(),
				RunId: t.GetRunId(),
			})
		}); err != nil && ctx.Err() == nil {
			return fmt.Errorf("finish: %w", err)
		}
		r.Turns++
	}
	return nil
}
