package plane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
)

// Every field of a message counts unless it is named: those of today, and those that are added later.
func TestEqualExcept_EveryFieldCounts(t *testing.T) {
	a := &taskv1.CommandSpec{} // it has fields of most kinds
	fields := a.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		b := &taskv1.CommandSpec{}
		planetest.SetField(b.ProtoReflect(), f)
		require.False(t, plane.EqualExcept(a, b), f.Name())
		require.True(t, plane.EqualExcept(a, b, f.Name()), f.Name())
		require.True(t, plane.EqualExcept(b, b), f.Name())
	}
	require.True(t, plane.EqualExcept(&agentv1.Round{Usage: &agentv1.TokenUsage{InputTokens: 7}},
		&agentv1.Round{Usage: &agentv1.TokenUsage{InputTokens: 7}, Settled: true}, "settled"))
	require.Panics(t, func() { plane.EqualExcept(a, a, "no_such_field") })
}
