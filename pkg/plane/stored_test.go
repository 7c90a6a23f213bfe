package plane_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
)

func TestStored_AnErrorDoesNotSayThatNothingHappened(t *testing.T) {
	require.NoError(t, plane.Stored(nil))
	refused := fault.Storage.New("the state cannot be shown", "outcome", "none")
	got := fault.From(plane.Stored(refused))
	require.Equal(t, "unknown", got.Metadata()["outcome"])
	require.Equal(t, fault.Storage, got.Reason())
	require.Equal(t, refused.Message(), got.Message())
	require.Equal(t, "none", refused.Metadata()["outcome"], "the error itself is not changed")
	pending := fault.Deadline.New("it goes on", "outcome", "pending")
	require.Equal(t, "pending", fault.From(plane.Stored(pending)).Metadata()["outcome"])
	require.Empty(t, fault.From(plane.Stored(context.Canceled)).Metadata()["outcome"])
}
