package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func TestSettingsOfNamespacesAreParsed(t *testing.T) {
	require.Equal(t, map[string]int{"a": 3}, must.Value(weightsOf(map[string]string{"a": "3"}))(t))
	rechecks := must.Value(rechecksOf(map[string]string{"a": "30m", "b": "0"}))(t)
	require.Equal(t, map[string]time.Duration{"a": 30 * time.Minute, "b": 0}, rechecks)
	for _, text := range []string{"0", "1001", "many", ""} {
		must.Fail(weightsOf(map[string]string{"a": text}))(t, "namespace-weights", text)
	}
	must.Fail(rechecksOf(map[string]string{"a": "soon"}))(t, "namespace-rechecks")
}
