package plane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

func TestPositionsTravelInTheRequest(t *testing.T) {
	ctx := After(context.Background(), Position{"agent", 3, 17}, Position{Plane: "task"}, Position{"waiting", 0, 1})
	md, _ := metadata.FromOutgoingContext(ctx)
	served := metadata.NewIncomingContext(context.Background(), md)
	require.Equal(t, []Position{{"agent", 3, 17}, {"waiting", 0, 1}}, positionsOf(served),
		"a position before the first event is left out")
	many := metadata.MD{}
	for i := range maxPositions + 1 {
		many.Append(afterHeader, Position{"agent", i, 1}.String())
	}
	require.Len(t, positionsOf(metadata.NewIncomingContext(context.Background(), many)), maxPositions)
	for _, text := range []string{"", "agent", "agent/x@1", "agent/1@", "/1@2", "agent/1@-2"} {
		require.Empty(t,
			positionsOf(metadata.NewIncomingContext(context.Background(), metadata.Pairs(afterHeader, text))), text)
	}
}
