package natsd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// A restart that failed can be tried again, until the server is stopped.
func TestRestartAfterOneThatFailed(t *testing.T) {
	s := must.Value(Start(Config{StoreDir: t.TempDir(), Port: InProcess}))(t)
	t.Cleanup(s.Stop)
	pending := s.opts.MaxPending
	s.opts.MaxPending = 1 // less than MaxPayload, which the server refuses
	for range 2 {
		require.ErrorContains(t, s.Restart(), "max_payload")
		must.Refuse(s.Connect("test"))(t, errStopped)
	}
	s.opts.MaxPending = pending
	require.NoError(t, s.Restart())
	nc := must.Value(s.Connect("test"))(t)
	nc.Close()
	s.Stop()
	require.ErrorIs(t, s.Restart(), errStopped)
}
