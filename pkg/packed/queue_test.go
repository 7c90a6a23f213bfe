package packed

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"quartet/pkg/must"
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

// TestQueue: a queue has what was added and not forgotten, whatever of it is packed, and one that is restored from that
// is the same.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[*string, texts]
		all := []string{}
		forgotten, added := 0, 0
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 12).Draw(t, "step"); {
			case step == 0:
				keep := rapid.IntRange(0, 30).Draw(t, "keep")
				for _, f := range q.Forget(keep) {
					require.Equal(t, all[0], *f)
					all = all[1:]
					forgotten++
				}
				require.True(t, q.Len() < keep+GroupSize || q.Len() < 2*GroupSize+Kept, "%d of %d", q.Len(), keep)
			case step <= 2 && len(all) > 0:
				require.Equal(t, all[0], *q.Drop())
				all = all[1:]
				forgotten++
			case step == 3 && len(all) > 0:
				i := rapid.IntRange(0, len(all)-1).Draw(t, "replaced")
				all = slices.Clone(all)
				all[i] += ", again"
				s := all[i]
				q.Set(i, &s)
			case step == 4 && len(all) > 0:
				i := rapid.IntRange(0, len(all)-1).Draw(t, "removed")
				all = slices.Delete(slices.Clone(all), i, i+1)
				q.Remove(i)
			default:
				s := fmt.Sprint("element ", added)
				added++
				all = append(all, s)
				q.Append(&s)
			}
			if len(all) > 0 {
				require.Equal(t, all[len(all)-1], *q.Last())
			}
		}
		require.Equal(t, len(all), q.Len())
		require.Equal(t, forgotten, q.Dropped())
		require.Equal(t, all, values(q.All()))
		for i := range all {
			require.Equal(t, all[i], *q.At(i))
		}
		back := values(slices.Collect(q.Backward()))
		slices.Reverse(back)
		require.Equal(t, all, back)
		require.Equal(t, all[max(0, len(all)-Kept):], values(q.Recent()))
		for range q.Backward() {
			break
		}
		require.Less(t, len(q.tail), GroupSize+Kept)
		require.Less(t, len(q.head), GroupSize)
		again := must.Value(Restored[*string, texts](q.Dropped(), q.All()))(t)
		require.Equal(t, append([][]byte{}, q.groups...), append([][]byte{}, again.groups...))
		require.Equal(t, values(q.tail), values(again.tail))
		require.Equal(t, values(q.head), values(again.head))
	})
	var q Queue[*string, texts]
	require.Nil(t, q.Last())
	must.Fail(Restored[*string, texts](-1, nil))(t, "forgotten -1")
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
	q.groups[0] = must.Value(Encode(texts{}.Message([]*string{&bad})))(t)
	require.PanicsWithValue(t, "packed: what was kept in memory cannot be read: it is bad", func() { q.All() })
}

// What was changed in memory is noticed, wherever that was.
func TestDecode(t *testing.T) {
	l := &structpb.ListValue{}
	for i := range 50 {
		l.Values = append(l.Values, structpb.NewStringValue(fmt.Sprint("a text that is there more than once, ", i)))
	}
	b := must.Value(Encode(l))(t)
	require.Less(t, len(b), proto.Size(l)/4)
	require.Equal(t, b, must.Value(Encode(l))(t))
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
