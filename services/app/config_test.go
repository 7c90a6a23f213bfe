package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// command-lease at, below and above its limits.
func TestX12_CommandLeaseLimits(t *testing.T) {
	for term, ok := range map[time.Duration]bool{
		0: true, 15*time.Second - 1: false, 15 * time.Second: true, 24 * time.Hour: true, 24*time.Hour + 1: false, -time.Second: false,
	} {
		cfg := Config{DataDir: t.TempDir(), CommandLease: term}
		err := cfg.Complete()
		if ok {
			require.NoError(t, err, term)
			continue
		}
		require.ErrorContains(t, err, "command-lease is "+term.String())
	}
}
