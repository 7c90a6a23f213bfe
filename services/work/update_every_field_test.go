package work

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/work/derive"
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
				d := must.Value(decideUpdate(s, env, req))(t)
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
		ignored := slices.Contains(ofEveryWrite, fields.Get(i).Name())
		require.Equal(t, ignored, sameContent(it, old, journal.Env{}), fields.Get(i).Name())
	}
}

// Every field of a request to create an item is in the record, except those that name the request and the item's
// place, and the plan, which is a file.
func TestW2_EveryFieldOfTheRequestIsStored(t *testing.T) {
	created := func(req *workv1.CreateWorkItemRequest) *workv1.WorkItemRecord {
		env := journal.Env{Now: time.Unix(1, 0), Actor: journal.Actor{Namespace: "acme"}}
		d := must.Value(decideCreate(NewState(), env, "wi_1", req, nil))(t)
		return d.Events[0].Payload.(*workv1.WorkItemCreated).GetWorkItem()
	}
	without := created(&workv1.CreateWorkItemRequest{AgentId: "keeper"})
	fields := (*workv1.CreateWorkItemRequest)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if slices.Contains([]protoreflect.Name{"agent_id", "request_id", "plan"}, f.Name()) {
			continue
		}
		req := &workv1.CreateWorkItemRequest{AgentId: "keeper"}
		planetest.SetField(req.ProtoReflect(), f)
		if f.Name() == "plan_status" { // a draft is the default
			req.PlanStatus = workv1.PlanStatus_PLAN_STATUS_READY
		}
		require.False(t, sameContent(created(req), without, journal.Env{}), f.Name())
	}
}

// X6: a view is the record, field by field, and what is derived. A field that is added
// to the record must be added to the view, with its name and number, and to both copies.
func TestX6_AViewHasEveryFieldOfTheRecord(t *testing.T) {
	it := planetest.Filled(&workv1.WorkItemRecord{})
	require.True(t, proto.Equal(it, derive.Shallow(it)), "Shallow leaves out a field:\n%v\n%v", it, derive.Shallow(it))

	shown := derive.View(it, "").ProtoReflect()
	fields := it.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		g := shown.Descriptor().Fields().ByName(f.Name())
		require.NotNil(t, g, "WorkItem has no field %s", f.Name())
		require.Equal(t, f.Number(), g.Number(), f.Name())
		require.Less(t, int(f.Number()), 30, "numbers from 30 are for what is derived")
		require.True(t, shown.Has(g), "view leaves out %s", f.Name())
	}
	derived := shown.Descriptor().Fields()
	for i := range derived.Len() {
		if f := derived.Get(i); fields.ByName(f.Name()) == nil {
			require.GreaterOrEqual(t, int(f.Number()), 30, "%s is derived", f.Name())
		}
	}
}
