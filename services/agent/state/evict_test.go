package state

import (
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
)

// requireSameLoad checks that the load of an agent, which may be evicted, is that of one that is in memory.
func (l *life) requireSameLoad(namespace, agentID string) {
	l.t.Helper()
	k := plane.Key{Namespace: namespace, ID: agentID}
	if l.state.Lookup(k) == nil {
		return // it was erased
	}
	owner := snapshot.Owner{Namespace: namespace, ID: agentID}
	inMemory := NewState()
	require.NoError(l.t, inMemory.AddPage(owner, l.state.Page(owner)))
	want, got := inMemory.LoadOf(k), l.state.LoadOf(k)
	require.Equal(l.t, want.Oldest.UnixMicro(), got.Oldest.UnixMicro())
	want.Oldest = got.Oldest
	require.Equal(l.t, want, got)
	require.Equal(l.t, inMemory.DecisionPending(k), l.state.DecisionPending(k))
	if lifecycle, evicted := l.state.Evicted(k); evicted {
		l.evicted[lifecycle]++
		require.Equal(l.t, l.state.Lookup(k).Record.GetLifecycle(), lifecycle)
		if got.Queued > 0 {
			l.queued++
		}
	}
}
