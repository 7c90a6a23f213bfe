package event_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/event"
	"quartet/pkg/must"
)

func TestSet(t *testing.T) {
	s := event.NewErasedSet()
	require.False(t, s.Has("ns", "ada"))
	require.Nil(t, s.Encode())
	one, two := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	payload := s.Payload(one, "ns", "ada")
	require.NotContains(t, payload.String(), "ada")
	owner, err := s.Add(7, payload)
	require.NoError(t, err)
	require.Equal(t, owner, s.HashOf("ns", "ada"))
	_, err = s.Add(9, s.Payload(two, "ns", "eve")) // the first key stays
	require.NoError(t, err)
	require.Error(t, must.Err(s.Add(11, event.NewErasedSet().Payload(two, "ns", "bob"))))
	require.Error(t, must.Err(s.Add(11, &structpb.Struct{})))
	for _, set := range []*event.ErasedSet{s, restored(t, s.Encode())} {
		require.Equal(t, 2, set.Len())
		require.EqualValues(t, 9, set.Last())
		require.True(t, set.Has("ns", "ada"))
		require.True(t, set.Has("ns", "eve"))
		require.False(t, set.Has("ns", "bob"))
		require.False(t, set.Has("n", "sada"), "where the namespace ends counts")
		is := set.Clone().HasOwnerOf
		require.True(t, is(line("ns", "ada")))
		require.False(t, is(line("other", "ada")))
		require.False(t, is(line("ns", "bob")))
		require.False(t, is([]byte(`{"wal_seq":1,"event_type":"partition_opened"}`+"\n")))
	}
	for cut := 1; cut < len(s.Encode()); cut++ {
		if err := event.NewErasedSet().Restore(s.Encode()[:cut]); err == nil {
			require.Zero(t, (cut-24)%16)
		}
	}
}

func restored(t *testing.T, b []byte) *event.ErasedSet {
	s := event.NewErasedSet()
	require.NoError(t, s.Restore(b))
	return s
}

func line(namespace, agent string) []byte {
	return fmt.Appendf(nil, `{"wal_seq":3,"event_type":"said","agent_id":%q,"namespace":%q,"payload":{}}`+"\n", agent,
		namespace)
}
