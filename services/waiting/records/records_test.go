package records

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/journal/journaltest"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// plain is a Set without anything packed.
type plain struct {
	byID  map[string]*waitingv1.Wait
	order []string // of creation
	ended []string // in the order of their ends
}

func (p *plain) put(w *waitingv1.Wait, lives bool) {
	id := w.GetWaitId()
	if p.byID[id] == nil {
		p.order = append(p.order, id)
	}
	p.byID[id] = w
	if lives || slices.Contains(p.ended, id) {
		return
	}
	p.ended = append(p.ended, id)
	if len(p.ended) > KeptEnded {
		delete(p.byID, p.ended[0])
		p.order = slices.DeleteFunc(p.order, func(o string) bool { return o == p.ended[0] })
		p.ended = p.ended[1:]
	}
}

func (p *plain) list(after string, limit int, keep func(*waitingv1.Wait) bool) (ids []string) {
	start := 0
	if after != "" {
		if start = slices.IndexFunc(p.order, func(id string) bool { return id > after }); start < 0 {
			return nil
		}
	}
	for _, id := range p.order[start:] {
		if keep(p.byID[id]) && len(ids) < limit {
			ids = append(ids, id)
		}
	}
	return ids
}

func lives(w *waitingv1.Wait) bool { return w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE }

func idsOf(ws []*waitingv1.Wait) (ids []string) {
	for _, w := range ws {
		ids = append(ids, w.GetWaitId())
	}
	return ids
}

// TestX9_WhatIsPackedIsSeenByNobody: a Set answers as one without anything packed, in whatever order its records end
// and change, also where ids do not grow since the clock was set back; and it is the same when it was read from its
// page, or from one of format 2.
func TestX9_WhatIsPackedIsSeenByNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Set[*waitingv1.Wait]
		p := plain{byID: map[string]*waitingv1.Wait{}}
		put := func(w *waitingv1.Wait) {
			s.Put(w, lives(w))
			p.put(w, lives(w))
		}
		clock := 5000
		for i := range rapid.SampledFrom([]int{5, 40, 700}).Draw(t, "records") {
			clock += rapid.SampledFrom([]int{1, 1, 1, 1, 2, -90}).Draw(t, "ticks")
			put(&waitingv1.Wait{
				WaitId:    fmt.Sprintf("wt_%04d_%d", clock, i),
				Status:    waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
				CreatedAt: timestamppb.New(time.Unix(int64(clock), 0)),
			})
			for range rapid.IntRange(0, 2).Draw(t, "changes") {
				near := max(0, len(p.order)-rapid.SampledFrom([]int{4, 4, 4, 300}).Draw(t, "near"))
				w := proto.CloneOf(p.byID[p.order[rapid.IntRange(near, len(p.order)-1).Draw(t, "which")]])
				w.Revision++
				if rapid.IntRange(0, 3).Draw(t, "ends") > 0 {
					w.Status = waitingv1.WaitStatus_WAIT_STATUS_CANCELLED
				}
				put(w)
			}
		}
		check := func(s *Set[*waitingv1.Wait]) {
			require.Equal(t, len(p.order), s.Len())
			for _, id := range p.order {
				require.True(t, proto.Equal(p.byID[id], s.Get(id)), id)
			}
			require.Nil(t, s.Get("wt_none"))
			living := p.list("", len(p.order), lives)
			require.Equal(t, living, idsOf(s.Living()))
			slices.Sort(living)
			require.Equal(t, living, idsOf(s.LivingByID()))
			size := rapid.IntRange(1, 60).Draw(t, "page size")
			for _, ended := range []bool{false, true} {
				keep := func(w *waitingv1.Wait) bool { return ended || lives(w) }
				for after := range slices.Values([]string{
					"", rapid.SampledFrom(p.order).Draw(t, "after"), "wt_4990",
					"wt_~",
				}) {
					require.Equal(t, p.list(after, size, keep), idsOf(s.List(after, size, ended, keep)), after)
				}
			}
		}
		check(&s)
		open, rest := s.Page()
		b, err := proto.Marshal(rest)
		require.NoError(t, err)
		var again, old Set[*waitingv1.Wait]
		var read snapshotv1.EndedRecords
		require.NoError(t, proto.Unmarshal(b, &read))
		require.NoError(t, again.Restore(open, &read, nil))
		require.NoError(t, journaltest.Same(s, again))
		var all []*waitingv1.Wait
		for _, id := range p.order {
			all = append(all, p.byID[id])
		}
		require.NoError(t, old.Restore(all, nil, p.ended))
		check(&old)
	})
}

// What is packed is packed of every kind.
func TestKinds(t *testing.T) {
	var triggers Set[*waitingv1.Trigger]
	var timers Set[*waitingv1.Timer]
	for i := range 40 {
		triggers.Put(&waitingv1.Trigger{TriggerId: fmt.Sprintf("trg_%02d", i)}, false)
		timers.Put(&waitingv1.Timer{TimerId: fmt.Sprintf("tmr_%02d", i)}, i == 3)
	}
	require.Equal(t, "trg_05", triggers.Get("trg_05").GetTriggerId())
	require.Equal(t, "tmr_05", timers.Get("tmr_05").GetTimerId())
	all := timers.List("", 99, true, func(*waitingv1.Timer) bool { return true })
	require.True(t, slices.IsSortedFunc(all, func(a, b *waitingv1.Timer) int {
		return cmp.Compare(a.GetTimerId(), b.GetTimerId())
	}))
	require.Len(t, all, 40)
	_, rest := triggers.Page()
	require.Len(t, rest.GetGroups(), 4)
}

// A page goes on where it stopped, also when the record it stopped at is gone.
func TestX9_PagesOutliveTheirRecords(t *testing.T) {
	var rs Set[*waitingv1.Wait]
	name := func(i int) string { return fmt.Sprintf("wt_%04d", i) }
	for i := range 6 {
		rs.Put(&waitingv1.Wait{WaitId: name(i)}, true)
	}
	all := func(*waitingv1.Wait) bool { return true }
	page := rs.List("", 2, true, all)
	require.Len(t, page, 2)
	rs.Put(page[1], false)
	for i := range KeptEnded {
		rs.Put(&waitingv1.Wait{WaitId: name(100 + i)}, false)
	}
	require.Nil(t, rs.Get(name(1)))
	rest := rs.List(page[1].GetWaitId(), 4, true, all)
	require.Equal(t, []string{name(2), name(3), name(4), name(5)}, idsOf(rest))
	require.Empty(t, rs.List("wt_z", 10, true, all))
}
