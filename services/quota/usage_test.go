package quota

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal"
)

// The namespaces that have written most come first, at most 100; of the others only the number is said.
func TestLargest(t *testing.T) {
	for _, n := range []int{0, maxLargest - 1, maxLargest, maxLargest + 1} {
		g := &Gate{counts: newCounts(zap.NewNop(), nil), cfg: Config{Sources: func(string) ([]journal.Source, error) {
			return []journal.Source{}, nil
		}}}
		for i := range n {
			g.counts.held[fmt.Sprintf("ns-%03d", i)] = map[string]int64{
				MiB: int64(i / 2), Agents: int64(i), OpenItems: 7,
			}
		}
		got, total, err := g.Largest(t.Context())
		require.NoError(t, err)
		require.Equal(t, n, total)
		require.Len(t, got, min(n, maxLargest))
		if n < 2 {
			continue
		}
		for i := range got[1:] {
			a, b := got[i], got[i+1]
			require.True(t, a.GetBytes() > b.GetBytes() || a.GetBytes() == b.GetBytes() &&
				a.GetNamespace() < b.GetNamespace())
		}
		require.EqualValues(t, (n-1)/2, got[0].GetBytes())
		require.EqualValues(t, 7, got[0].GetOpenItems())
		g.counts.close()
	}
}
