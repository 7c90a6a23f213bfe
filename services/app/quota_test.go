package app

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"quartet/services/quota"
)

// TestI9_QuotasByDefault: where credentials are required every quota has a default, otherwise none has; 0 is no
// limit in both, and what is set is what counts.
func TestI9_QuotasByDefault(t *testing.T) {
	load := func(args ...string) map[string]int {
		var c Config
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		set := c.Flags(fs)
		require.NoError(t, fs.Parse(append(args, "--data-dir", t.TempDir())))
		require.NoError(t, set.Load(""))
		require.NoError(t, c.Complete())
		l, err := c.quotas()
		require.NoError(t, err)
		return l.Default
	}
	for _, kind := range quota.Kinds {
		require.Positive(t, load("--auth", "required")[kind], kind)
		require.Zero(t, load("--auth", "off")[kind], kind)
		require.Zero(t, load("--auth", "required", "--quota-"+kind, "0")[kind], kind)
		require.Equal(t, 7, load("--auth", "off", "--quota-"+kind, "7")[kind], kind)
	}
	require.EqualValues(t, 5<<20, (&Config{MaxMemory: 5}).memory())
}
