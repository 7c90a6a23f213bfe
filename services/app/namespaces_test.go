package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func TestSettingsOfNamespacesAreParsed(t *testing.T) {
	weights := must.Value(weightsOf(map[string]string{"a": "3"}))(t)
	require.Equal(t, map[string]int{"a": 3}, weights)
	rechecks := must.Value(rechecksOf(map[string]string{"a": "30m", "b": "0"}))(t)
	require.Equal(t, map[string]time.Duration{"a": 30 * time.Minute, "b": 0}, rechecks)
	for _, text := range []string{"0", "1001", "many", ""} {
		_, err := weightsOf(map[string]string{"a": text})
		require.ErrorContains(t, err, "namespace-weights", text)
	}
	_, err := rechecksOf(map[string]string{"a": "soon"})
	require.ErrorContains(t, err, "namespace-rechecks")
}
