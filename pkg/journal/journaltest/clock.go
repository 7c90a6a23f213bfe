package journaltest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
)

// clockSteps: requests are remembered for 24 hours, whatever happens to the clock of the machine meanwhile.
func clockSteps(t *testing.T, r *rig) {
	require.NoError(t, r.p.Close(t.Context()))
	var ahead, elapsed atomic.Int64
	cfg := Config(r.log)
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load() + elapsed.Load())) }
	cfg.Mono = func() time.Time { return time.Now().Add(time.Duration(elapsed.Load())) }
	open := func() {
		var err error
		r.p, err = journal.Open(t.Context(), cfg)
		require.NoError(t, err)
	}
	open()
	again := func() bool {
		_, res := r.put(t, "k", "v", "one")
		return res.Replayed
	}
	require.False(t, again())
	ahead.Store(int64(25 * time.Hour)) // somebody set it
	require.True(t, again())
	r.put(t, "k", "other", "two")
	require.True(t, again(), "a request of the new time removes none")
	r.log.Inject(Refused) // it is loaded again
	_, _, err := journal.Do(t.Context(), r.p, Put("k", "w", "three"))
	require.Error(t, err)
	require.True(t, again())
	ahead.Store(0) // and corrected it
	require.True(t, again())
	require.NoError(t, r.p.Close(t.Context()))
	open()
	require.True(t, again(), "what was written under the other clock removes none when it is read")
	elapsed.Store(int64(24*time.Hour + time.Minute))
	require.False(t, again(), "a day has passed")
}
