package archives_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/storage/archives"
	"quartet/tests/dev"
)

// TestWhoFollowsIsKnown: the planes that Floor asks what they have read of a journal are those that follow it in a
// server. Without one of them, events would be removed that it has not read.
func TestWhoFollowsIsKnown(t *testing.T) {
	s := dev.Start(t)
	started := time.Now()
	found := map[string][]string{}
	require.Eventually(t, func() bool {
		resp, err := identityv1.NewIdentityServiceClient(s.Conn()).ListProcesses(t.Context(),
			&identityv1.ListProcessesRequest{})
		require.NoError(t, err)
		if len(resp.GetProcesses()) != 1 {
			return false // it has not reported yet
		}
		p := resp.GetProcesses()[0]
		if p.GetReportedAt().AsTime().Before(started.Add(time.Second)) {
			return false // planes may just have begun to follow others
		}
		for _, h := range p.GetHeld() {
			for _, c := range h.GetConsumed() {
				if names := found[c.GetPlane()]; !slices.Contains(names, h.GetPlane()) {
					found[c.GetPlane()] = append(names, h.GetPlane())
				}
			}
		}
		return true
	}, time.Minute, 50*time.Millisecond)
	for _, names := range found {
		slices.Sort(names)
	}
	require.Equal(t, archives.Followers, found)
}
