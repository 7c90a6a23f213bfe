package groups

import (
	"iter"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/packed"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// named is an item that has nothing but its id.
type named struct {
	id    string
	index int
}

type list = List[named, string]

func newStore() *Store[list, string, named, string, struct{}] {
	entries := func(page proto.Message) []*workv1.WorkItemEntry { return page.(*workv1.AgentWorkPage).GetItems() }
	return New(func(id string) uint64 { return packed.Hash("", id) }, Codec[list, string, named, string, struct{}]{
		PageGroups: 4, EvictedGroups: 4,
		New:     func(plane.Key) *list { return &list{} },
		List:    func(l *list) *list { return l },
		Key:     func(_ plane.Key, x *named) string { return x.id },
		Index:   func(x *named) *int { return &x.index },
		NewPage: func() proto.Message { return &workv1.AgentWorkPage{} },
		Write: func(page proto.Message, items []*named) {
			p := page.(*workv1.AgentWorkPage)
			for _, x := range items {
				p.Items = append(p.Items, &workv1.WorkItemEntry{WorkItem: &workv1.WorkItemRecord{WorkItemId: x.id}})
			}
		},
		Read: func(_ plane.Key, page proto.Message) (items []*named) {
			for _, e := range entries(page) {
				items = append(items, &named{id: e.GetWorkItem().GetWorkItemId()})
			}
			return items
		},
		Keys: func(_ plane.Key, page proto.Message) iter.Seq[string] {
			return func(yield func(string) bool) {
				for _, e := range entries(page) {
					yield(e.GetWorkItem().GetWorkItemId())
				}
			}
		},
		WritePacked: func(page proto.Message, g Packed[string]) {
			p := page.(*workv1.AgentWorkPage)
			p.Packed = append(p.Packed, &workv1.PackedWorkItems{
				Group: uint32(g.Group), Content: g.Content, IdHashes: g.Hashes,
			})
		},
		ReadPacked: func(page proto.Message) iter.Seq[Packed[string]] {
			return func(yield func(Packed[string]) bool) {
				for _, p := range page.(*workv1.AgentWorkPage).GetPacked() {
					if !yield(Packed[string]{int(p.GetGroup()), p.GetContent(), p.GetIdHashes(), ""}) {
						return
					}
				}
			}
		},
		Check:   func(plane.Key, proto.Message) error { return nil },
		Added:   func(*list, *named) {},
		Evict:   func(*list, proto.Message) (struct{}, bool) { return struct{}{}, true },
		Restore: func(*list, proto.Message) {},
	})
}

// What an evicted owner is read from is checked.
func TestPagesOfEvictedOwners(t *testing.T) {
	s, k := newStore(), plane.KeyOf("acme", "a")
	s.UseFile(journaltest.NewFile(t))
	for i := range Size + 3 {
		s.Add(k, s.Owner(k), &named{id: string(rune('a' + i))})
	}
	require.True(t, s.Pack(k, s.Owner(k), 0, ""))
	page, left, can := s.evictedPage(k, s.Owner(k))
	require.True(t, can)
	require.EqualValues(t, Size+3, left.Items)
	_, _, err := s.Evict(math.MaxInt, false)
	require.NoError(t, err)
	require.Equal(t, 1, s.Counts().Evicted)
	require.Equal(t, Size+1, s.Find("r").index)

	l, err := s.evictedOwner(k, page)
	require.NoError(t, err)
	again, _, _ := s.evictedPage(k, l)
	want, err := snapshot.EncodePage(page)
	require.NoError(t, err)
	got, err := snapshot.EncodePage(again)
	require.NoError(t, err)
	require.Equal(t, want, got)
	p := proto.CloneOf(page.(*workv1.AgentWorkPage))
	p.Packed[0].Content = nil
	_, err = s.evictedOwner(k, p)
	require.ErrorContains(t, err, "acme/a: group 0: resident:")
	p.Packed[0].Group, p.Items = 1, nil
	_, err = s.evictedOwner(k, p)
	require.ErrorContains(t, err, "items before group 1 are missing")
}
