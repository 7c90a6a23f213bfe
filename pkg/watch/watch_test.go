package watch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func received(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestNotifyReachesTheSubscribersOfTheKeyOnly(t *testing.T) {
	var h Hub[string]
	a, b := h.Subscribe("a"), h.Subscribe("b")
	h.Notify("a")
	require.True(t, received(a.C()))
	require.False(t, received(b.C()))
}

func TestNotificationsBeforeAReceiveBecomeOne(t *testing.T) {
	var h Hub[string]
	s := h.Subscribe("a")
	h.Notify("a")
	h.Notify("a")
	require.True(t, received(s.C()))
	require.False(t, received(s.C()))
}

func TestACloseEndsTheSubscription(t *testing.T) {
	var h Hub[string]
	s := h.Subscribe("a")
	require.True(t, h.Active())
	s.Close()
	s.Close()
	require.False(t, h.Active())
	h.Notify("a")
	require.False(t, received(s.C()))
}

func TestStopEndsEveryWait(t *testing.T) {
	var h Hub[string]
	require.False(t, received(h.Stopped()))
	h.Stop()
	h.Stop()
	<-h.Stopped()
}
