package work

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/work/derive"
)

// filled returns a record with every field set.
func filled() *workv1.WorkItemRecord {
	it := &workv1.WorkItemRecord{}
	m := it.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		planetest.SetField(m, fields.Get(i))
	}
	return it
}

// X6: a view is the record, field by field, and what is derived. A field that is added
// to the record must be added to the view, with its name and number, and to both copies.
func TestX6_AViewHasEveryFieldOfTheRecord(t *testing.T) {
	it := filled()
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
