package fault

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
)

// When to come again crosses the wire beside the rest.
func TestRetryAfterCrossesTheWire(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 90 * time.Second} {
		e := RateLimited.New("slow down", "limit", "5").WithField("x", "y").WithRetryAfter(d)
		back := From(status.FromProto(e.GRPCStatus().Proto()).Err())
		require.Equal(t, d, back.RetryAfter())
		require.Equal(t, RateLimited, back.Reason())
		require.Equal(t, "5", back.Metadata()["limit"])
		require.Len(t, back.Violations(), 1)
	}
	require.Zero(t, RateLimited.New("x").RetryAfter())
}
