package jetlog_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// TestA8_WhatIsRefusedIsNotErased: messages are gone once Overwrite returns, and that a server refuses to remove one is
// an error, although the client answers as for one that is gone.
func TestA8_WhatIsRefusedIsNotErased(t *testing.T) {
	js := must.Value(jetstream.New(natsdtest.Connect(t)))(t)
	for _, refused := range []bool{false, true} {
		name := map[bool]string{false: "REMOVED", true: "REFUSED"}[refused]
		stream := must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".*"}, DenyDelete: refused,
		}))(t)
		for _, agent := range []string{"a", "b", "a", "a"} {
			must.Value(js.Publish(t.Context(), name+"."+agent, []byte("text")))(t)
		}
		if !refused {
			require.NoError(t, stream.DeleteMsg(t.Context(), 3))
		}
		err := jetlog.Overwrite(t.Context(), stream, name+".a")
		left := must.Value(stream.Info(t.Context()))(t).State.Msgs
		if refused {
			require.ErrorContains(t, err, "message 1 is still there")
			require.EqualValues(t, 4, left)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 1, left)
	}
}
