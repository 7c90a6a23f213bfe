package runners

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/plane"
)

// A wake that reaches a runner in the moment it gives up goes to the next one.
func TestX13_AWakeIsPassedOn(t *testing.T) {
	var ws Waiters
	keeper := plane.Key{Namespace: "acme", ID: "keeper"}
	first, second := ws.Add("acme", nil, false, Selection{}), ws.Add("acme", nil, false, Selection{})
	ws.Wake(keeper)
	require.Len(t, first.Woken, 1)
	ws.Remove(first) // its deadline passed in the same moment
	require.Len(t, second.Woken, 1)

	third := ws.Add("acme", []string{"other", "other"}, false, Selection{})
	ws.Remove(second)
	require.Empty(t, third.Woken, "it does not serve that agent")
	require.Zero(t, ws.Count(keeper, nil))
	require.Equal(t, 1, ws.Count(plane.Key{Namespace: "acme", ID: "other"}, nil))
	ws.Remove(third)
	require.Empty(t, ws.byNamespace)
	require.Empty(t, ws.byAgent, "what is at rest takes no memory")
}
