package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// derived are the fields that view computes; a record has none of them.
var derived = map[protoreflect.Name]bool{
	"plan_artifact": true, "scheduling_state": true, "readiness": true, "reason_code": true, "candidate_class": true,
	"is_current": true, "current_todo": true, "has_active_waits": true, "has_triggered_waits": true,
}

// A field that is added to the record must be added to its copy.
func TestX6_AViewHasEveryFieldOfTheRecord(t *testing.T) {
	it := &workv1.WorkItem{}
	m := it.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case derived[f.Name()]:
		case f.IsList():
			m.Mutable(f).List().AppendMutable()
		case f.Message() != nil:
			m.Mutable(f)
		case f.Enum() != nil:
			m.Set(f, protoreflect.ValueOfEnum(1))
		case f.Kind() == protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(7))
		default:
			m.Set(f, protoreflect.ValueOfString("x"))
		}
	}
	require.True(t, proto.Equal(it, shallow(it)), "%v\n%v", it, shallow(it))
}
