package packed

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// texts packs strings.
type texts struct{}

func (texts) Message(all []*string) proto.Message {
	l := &structpb.ListValue{}
	for _, s := range all {
		l.Values = append(l.Values, structpb.NewStringValue(*s))
	}
	return l
}

func (texts) New() proto.Message { return &structpb.ListValue{} }

func (texts) Elements(m proto.Message) (all []*string, err error) {
	for _, v := range m.(*structpb.ListValue).GetValues() {
		s := v.GetStringValue()
		if s == "bad" {
			return nil, fmt.Errorf("it is %s", s)
		}
		all = append(all, &s)
	}
	return all, nil
}

// TestQueue: a queue has what was added and not forgotten, whatever of it is packed, and one that is restored from that is the same.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[*string, texts]
		var all []string
		forgotten := 0
		for n := range rapid.IntRange(0, 100).Draw(t, "elements") {
			s := fmt.Sprint("element ", n)
			all = append(all, s)
			q.Append(&s)
			if rapid.Bool().Draw(t, "forget") {
				keep := rapid.IntRange(0, 30).Draw(t, "keep")
				for _, f := range q.Forget(keep) {
					require.Equal(t, all[forgotten], *f)
					forgotten++
				}
				require.True(t, q.Len() < keep+GroupSize || q.Len() < GroupSize+Kept, "%d of %d", q.Len(), keep)
			}
			require.Equal(t, s, *q.Last())
		}
		want := append([]string{}, all[forgotten:]...)
		require.Equal(t, len(want), q.Len())
		require.Equal(t, forgotten, q.Dropped())
		require.Equal(t, want, values(q.All()))
		back := values(slices.Collect(q.Backward()))
		slices.Reverse(back)
		require.Equal(t, want, back)
		require.Equal(t, want[max(0, len(want)-Kept):], values(q.Recent()))
		for range q.Backward() {
			break
		}
		again, err := Restored[*string, texts](q.Dropped(), q.All())
		require.NoError(t, err)
		require.Equal(t, append([][]byte{}, q.groups...), append([][]byte{}, again.groups...))
		require.Equal(t, values(q.tail), values(again.tail))
	})
	var q Queue[*string, texts]
	require.Nil(t, q.Last())
	_, err := Restored[*string, texts](GroupSize-1, nil)
	require.ErrorContains(t, err, "forgotten 7")
	_, err = Restored[*string, texts](-GroupSize, nil)
	require.Error(t, err)
}

func values(all []*string) []string {
	values := []string{}
	for _, s := range all {
		values = append(values, *s)
	}
	return values
}

// Reading what is packed gives copies, and changes nothing.
func TestQueue_Unchanged(t *testing.T) {
	var q Queue[*string, texts]
	for range 3 * GroupSize {
		s := "good"
		q.Append(&s)
	}
	*q.All()[0] = "changed"
	require.Equal(t, "good", *q.All()[0])
	bad := "bad"
	b, err := Encode(texts{}.Message([]*string{&bad}))
	require.NoError(t, err)
	q.groups[0] = b
	require.PanicsWithValue(t, "packed: what was kept in memory cannot be read: it is bad", func() { q.All() })
}

// What was changed in memory is noticed, wherever that was.
func TestDecode(t *testing.T) {
	l := &structpb.ListValue{}
	for i := range 50 {
		l.Values = append(l.Values, structpb.NewStringValue(fmt.Sprint("a text that is there more than once, ", i)))
	}
	b, err := Encode(l)
	require.NoError(t, err)
	require.Less(t, len(b), proto.Size(l)/4)
	again, err := Encode(l)
	require.NoError(t, err)
	require.Equal(t, b, again)
	var got structpb.ListValue
	require.NoError(t, Decode(b, &got))
	require.True(t, proto.Equal(l, &got))
	for i := range b {
		for _, bit := range []byte{1, 0x80} {
			b[i] ^= bit
			require.Error(t, Decode(b, &got), "byte %d", i)
			b[i] ^= bit
		}
	}
	for n := range b {
		require.Error(t, Decode(b[:n], &got), "%d bytes", n)
	}
	require.Error(t, Decode([]byte("no message"), &got))
}
