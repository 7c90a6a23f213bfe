package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// TestX16_AReportInAFullStore: when only the reserve of the store is left, an item can be completed and get its report,
// so that the turn that completed it can end.
func TestX16_AReportInAFullStore(t *testing.T) {
	r := openRig(t)
	r.down()
	r.room = &framelog.Room{}
	r.up()
	t.Cleanup(func() { r.down() })
	item := r.create("ship it").GetWorkItemId()
	const limit = 1 << 30
	require.NoError(t, r.room.Measure(func() (framelog.RoomState, error) {
		return framelog.RoomState{Used: limit - framelog.RoomReserve(limit) + 1, Limit: limit}, nil
	}))
	_, err := r.service.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "more"})
	require.ErrorIs(t, err, fault.StorageFull)
	r.complete(item)
	promoted, err := r.service.PromoteReport(planetest.As(t.Context(), rpc.RoleService), &workv1.PromoteReportRequest{
		AgentId: "keeper", WorkItemId: item, Text: "done",
	})
	require.NoError(t, err)
	require.True(t, promoted.GetPromoted())
}
