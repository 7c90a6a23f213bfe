package pbjson

import (
	"testing"

	"github.com/stretchr/testify/require"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

func TestEnumName(t *testing.T) {
	require.Equal(t, "memory_limit_exceeded", EnumName(taskv1.TaskEndReason_TASK_END_REASON_MEMORY_LIMIT_EXCEEDED))
	require.Empty(t, EnumName(taskv1.TaskEndReason_TASK_END_REASON_UNSPECIFIED))
	require.Empty(t, EnumName(taskv1.TaskEndReason(99)))
}
