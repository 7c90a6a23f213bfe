package plane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

func TestRows(t *testing.T) {
	created := plane.RowOf[*workv1.WorkItemCreated]("created")
	rows := plane.NewRows(created, plane.RowOf[*workv1.WorkItemUpdated]("updated"))
	row, err := rows.Of(&journal.Event{Payload: &workv1.WorkItemUpdated{}})
	require.NoError(t, err)
	require.Equal(t, "updated", row)
	for _, unknown := range []*journal.Event{{Payload: &workv1.WorkItemPicked{}}, {}} {
		_, err = rows.Of(unknown)
		require.ErrorIs(t, err, journal.ErrUnknownEvent)
	}
	require.Panics(t, func() { plane.NewRows(created, created) })
}
