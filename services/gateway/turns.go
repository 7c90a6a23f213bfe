package gateway

import (
	"context"

	"quartet/pkg/admission"
	"quartet/pkg/rpc"
)

type turnKey struct{}

// enter waits until a request of an actor may run. The caller must call Leave on the turn when the request has ended.
func (g *Service) enter(ctx context.Context, a rpc.Actor) (context.Context, *admission.Turn, error) {
	turn, err := g.deps.Admission.Enter(ctx, a)
	return context.WithValue(ctx, turnKey{}, turn), turn, err
}

// leaveSoon is called for a request that now waits for something to happen: its turn ends in a moment.
func leaveSoon(ctx context.Context) {
	if turn, ok := ctx.Value(turnKey{}).(*admission.Turn); ok {
		turn.LeaveSoon()
	}
}
