package records

import (
	"testing"

	"github.com/stretchr/testify/require"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// A page goes on where it stopped, also when the record it stopped at is gone.
func TestX9_PagesOutliveTheirRecords(t *testing.T) {
	var rs Set[*waitingv1.Wait]
	name := func(i int) string { return "wt_" + string(rune('a'+i)) }
	for i := range 6 {
		rs.Put(&waitingv1.Wait{WaitId: name(i)}, true)
	}
	all := func(*waitingv1.Wait) bool { return true }
	page := rs.List("", 2, all)
	require.Len(t, page, 2)
	delete(rs.byID, name(1))
	rs.order = append(rs.order[:1:1], rs.order[2:]...)
	rest := rs.List(page[1].GetWaitId(), 10, all)
	require.Len(t, rest, 4)
	require.Equal(t, name(2), rest[0].GetWaitId())
	require.Empty(t, rs.List("wt_z", 10, all))
}
