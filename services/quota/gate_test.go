package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/services/identity"
)

// Every method that is named here is one, so that a new name does not lift a
// quota.
func TestTheMethodsExist(t *testing.T) {
	for method := range writes {
		roles, _ := identity.Allowed(method)
		require.NotEmpty(t, roles, method)
	}
	for method := range makes {
		require.True(t, writes[method], "%s makes something, and so writes", method)
	}
	for method := range repeats {
		require.True(t, writes[method], method)
	}
}

func TestLimits(t *testing.T) {
	l := must.Value(Parse(map[string]int{Agents: 5}, map[string]string{
		"acme.agents": "7", "free.agents": "0",
		"acme.mib": "1",
	}))(t)
	for namespace, want := range map[string]int64{"acme": 7, "free": 0, "other": 5} {
		require.Equal(t, want, l.limit(namespace, Agents), namespace)
	}
	require.True(t, l.any(MiB))
	require.False(t, l.any(Requests))
	none := must.Value(Parse(nil, map[string]string{"acme.agents": "0"}))(t)
	require.NoError(t, NewGate(Config{Limits: none}).Request("acme"))
}

// A second's worth at once, then one at a time; others are not concerned.
func TestRequests(t *testing.T) {
	g := NewGate(Config{Limits: must.Value(Parse(nil, map[string]string{"acme.requests": "3"}))(t)})
	for range 3 {
		require.NoError(t, g.Request("acme"))
	}
	var refused error
	for range 1000 { // sooner than 1000 of them are due
		if refused = g.Request("acme"); refused != nil {
			break
		}
	}
	require.ErrorIs(t, refused, fault.RateLimited)
	require.Positive(t, fault.From(refused).RetryAfter())
	for range 100 {
		require.NoError(t, g.Request("other"))
	}
}
