package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// A write that fails because the command was abandoned says so: the context has its cause before writes fail.
func TestAnAbandonedCommandsWriteSaysWhy(t *testing.T) {
	c := newCommand(t.Context(), &taskv1.CommandLease{Task: &taskv1.Task{TaskId: "tsk_1"}}, func() {})
	cancel, written := c.cancel, false
	c.cancel = func(cause error) {
		n, err := c.Stdout().Write([]byte("x"))
		written = n == 1 && err == nil
		cancel(cause)
	}
	c.abandon()
	require.True(t, written, "writes failed before there was a cause")
	n, err := c.Stdout().Write([]byte("x"))
	require.Zero(t, n)
	require.ErrorIs(t, err, ErrStopped)
}
