package jetlog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A replica that is read from again is not one of those that are avoided, whether somebody asked for it meanwhile or
// not.
func TestReplicas_TermsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r replicas
		require.Equal(t, 1, r.avoid("one", time.Minute))
		require.Equal(t, 2, r.avoid("two", time.Hour))
		require.True(t, r.avoided("one"))
		<-time.After(time.Minute + 1)
		require.Equal(t, 2, r.avoid("three", time.Hour), "two and three")
		require.False(t, r.avoided("one"))
		require.Equal(t, 2, r.avoid("three", time.Hour))
		r.forget()
		require.False(t, r.avoided("two"))
	})
}
