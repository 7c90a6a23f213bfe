package work

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, workv1.File_quartet_work_v1_work_event_proto, NewState)
}

// TestAnEventOfAnItemIsInItsHistory: an event has items exactly if their history has an entry of it, since an event
// that changes an item's page and is in no history would be a change that nobody can explain. What is not folded
// changes no item.
func TestAnEventOfAnItemIsInItsHistory(t *testing.T) {
	registry := journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto)
	for _, eventType := range registry.Types() {
		payload := planetest.Filled(must.Value(registry.New(eventType))(t))
		ev := &journal.Event{Type: eventType, Namespace: "acme", AgentID: "keeper", WorkItemID: "x", Payload: payload}
		r, _ := eventRows.Of(ev)
		items := r.items(ev)
		require.Equal(t, len(items) > 0, r.entry != nil, eventType)
		if r.fold == nil {
			require.Empty(t, items, eventType)
			require.False(t, r.changes(NewState(), ev), eventType)
		}
	}
}

// An attached wait has every field but the one that only this plane sets.
func TestAnAttachedWaitHasEveryField(t *testing.T) {
	want := planetest.Filled(&workv1.AttachedWait{})
	want.RecheckConsumedAt = nil
	require.True(t, proto.Equal(want, AttachedWaitOf(planetest.Filled(&waitingv1.Wait{}))))
}
