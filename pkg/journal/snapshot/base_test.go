package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
)

// texts are the pages that were read.
type texts map[snapshot.Owner]string

func (t texts) DecodePage(content []byte) (proto.Message, error) {
	m := &wrapperspb.StringValue{}
	return m, proto.Unmarshal(content, m)
}

func (t texts) AddPage(o snapshot.Owner, page proto.Message) error {
	t[o] = page.(*wrapperspb.StringValue).GetValue()
	return nil
}

func (t texts) AddRequest(requests.Key, requests.Entry) {}
func (t texts) AddFrame(snapshot.Frame)                 {}

// Objects of which most pages are not current are written again, so that a snapshot takes at most about twice as much
// as what it has, and with them the pages that did not change, and that an owner is gone.
func TestSparseObjectsAreReplaced(t *testing.T) {
	store, base := journaltest.NewMemSnapshots(), &snapshot.Base{}
	owner := func(id string) snapshot.Owner { return snapshot.Owner{Namespace: "acme", ID: id} }
	var replaced []snapshot.Owner
	want := texts{owner("quiet"): "quiet"}
	for n := range 40 {
		d := snapshot.Begin(store, base, 0)
		add := func(o snapshot.Owner, text string) {
			replaced = slices.DeleteFunc(replaced, func(r snapshot.Owner) bool { return r == o })
			if text == "" {
				require.NoError(t, d.Add(t.Context(), o, nil))
				return
			}
			require.NoError(t, d.Add(t.Context(), o, wrapperspb.String(text)))
		}
		if n == 0 {
			add(owner("quiet"), "quiet")
			add(owner("gone"), "was there")
		}
		if n == 1 {
			add(owner("gone"), "")
		}
		for i := range 50 {
			o := owner(fmt.Sprint("busy-", i))
			want[o] = strings.Repeat(string(rune('a'+n)), 20_000)
			add(o, want[o])
		}
		for _, o := range slices.Clone(replaced) {
			add(o, want[o])
		}
		s, next, err := d.Finish(t.Context(), snapshot.Cut{Partition: "test/0"})
		require.NoError(t, err)
		base = next()
		require.NoError(t, base.Clean(t.Context(), store))
		replaced = must.Value(base.Sparse(t.Context(), store))(t)
		var all int64
		for _, o := range s.Manifest.GetPages() {
			all += o.GetEntries()
		}
		require.Less(t, all, int64(4_000_000))
		if n%8 == 7 { // as a process does that begins
			kept := must.Value(snapshot.Stored(t.Context(), store, "test/0"))(t)
			got := texts{}
			base = must.Value(snapshot.Read(t.Context(), store, kept[0], kept[1:], got))(t)
			require.Equal(t, want, got)
		}
	}
	require.Less(t, len(must.Value(store.Numbers(t.Context()))(t)), 40)
}

// A store that lost a sparse object is an error.
func TestSparseObjectsThatAreLost(t *testing.T) {
	store, base := journaltest.NewMemSnapshots(), &snapshot.Base{}
	var once []snapshot.Owner
	for n, text := range []string{strings.Repeat("x", 20_000), "short"} {
		d := snapshot.Begin(store, base, 0)
		for i := range 200 {
			require.NoError(t, d.Add(t.Context(), snapshot.Owner{ID: fmt.Sprint(i)}, wrapperspb.String(text)))
			if n == 0 && i%10 == 0 {
				once = append(once, snapshot.Owner{ID: fmt.Sprint("once-", i)})
				require.NoError(t, d.Add(t.Context(), once[len(once)-1], wrapperspb.String("x")))
			}
		}
		_, next, err := d.Finish(t.Context(), snapshot.Cut{Partition: "test/0"})
		require.NoError(t, err)
		base = next()
	}
	require.ElementsMatch(t, once, must.Value(base.Sparse(t.Context(), store))(t))
	for _, o := range base.Newest().Manifest.GetPages() {
		require.NoError(t, store.Remove(t.Context(), []uint64{o.GetNumber()}))
	}
	must.Refuse(base.Sparse(t.Context(), store))(t, snapshot.ErrNoObject)
}
