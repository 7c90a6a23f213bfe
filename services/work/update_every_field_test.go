package work

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

// An update of one field is stored, whichever it is, and a repetition changes nothing (SPEC W5.4). A field of the
// request that fails here is not read by decideUpdate, or is a selector.
func TestW5_AnUpdateOfOneFieldIsStored(t *testing.T) {
	const id = "wi_01bx5zzkbkactav9wevgemmvrz"
	fields := (*workv1.UpdateWorkItemRequest)(nil).ProtoReflect().Descriptor().Fields()
	for _, name := range settable {
		t.Run(name, func(t *testing.T) {
			s, env := NewState(), journal.Env{Now: time.Unix(1, 0), Actor: journal.Actor{Namespace: "acme"}}
			walSeq := uint64(0)
			fold := func(events ...*journal.Event) {
				for _, ev := range events {
					walSeq++
					ev.WalSeq, ev.Namespace, ev.CreatedAt = walSeq, "acme", env.Now
					require.NoError(t, s.Apply(ev))
				}
			}
			update := func(field string) int {
				req := &workv1.UpdateWorkItemRequest{AgentId: "keeper", WorkItemId: id}
				planetest.SetField(req.ProtoReflect(), fields.ByName(protoreflect.Name(field)))
				require.NoError(t, validateUpdate(req))
				d, err := decideUpdate(s, env, req)
				require.NoError(t, err)
				fold(d.Events...)
				return len(d.Events)
			}
			it := &workv1.WorkItemRecord{
				WorkItemId: id, AgentId: "keeper", Objective: "win", Revision: 1,
				State:      workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
				PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
			}
			fold(itemEvent(it, nil, &workv1.WorkItemCreated{WorkItem: it}))
			if set, clears := strings.CutPrefix(name, "clear_"); clears {
				require.Equal(t, 1, update(set))
			}
			require.Equal(t, 1, update(name))
			require.Zero(t, update(name), "the item has it already")
		})
	}
}

// Every field of the record counts, but for those that every write changes.
func TestW5_EveryFieldOfTheRecordCounts(t *testing.T) {
	old := &workv1.WorkItemRecord{}
	fields := old.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		it := &workv1.WorkItemRecord{}
		planetest.SetField(it.ProtoReflect(), fields.Get(i))
		counts := true
		for _, name := range ofEveryWrite {
			counts = counts && name != fields.Get(i).Name()
		}
		require.Equal(t, counts, !sameContent(it, old, journal.Env{}), fields.Get(i).Name())
	}
}
