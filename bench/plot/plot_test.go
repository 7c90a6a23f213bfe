package plot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLabels: names do not stand on one another, and a grid has three to six lines.
func TestLabels(t *testing.T) {
	at := labels([]Line{
		{Values: []float64{0}},
		{Values: []float64{90}},
		{Values: []float64{1}},
		{Values: []float64{1}},
	}, func(v float64) float64 { return 200 - v })
	require.Equal(t, []float64{200, 110, 186, 172}, at)
	for most, step := range map[float64]float64{90: 20, 2.4: 0.5, 0.9: 0.2, 160: 50, 0: 1} {
		require.InDelta(t, step, stepOf(most), 1e-9, "of %g", most)
	}
}
