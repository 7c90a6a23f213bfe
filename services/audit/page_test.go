package audit

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
)

// record applies the events of n further entries to a state.
func record(t *testing.T, to journal.State, s *State, n int) {
	t.Helper()
	for range n {
		number := len(s.positions)
		env := journal.Env{Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).
			Add(time.Duration(number*number) * time.Microsecond)}
		for _, ev := range decideRecord(s, env, []*auditv1.AuditEntry{{}}).Events {
			ev.WalSeq = uint64(number*2 + 1)
			require.NoError(t, to.Apply(ev))
		}
	}
}

// The positions of any number of entries are written and read in pages, and an entry changes the newest page only.
func TestPages(t *testing.T) {
	var seen journaltest.Seen
	checked := journaltest.Checked(NewState, 1000, &seen)
	record(t, checked, checked.Paged, pageEntries-3)
	for range 6 {
		record(t, checked, checked.Paged, 1)
		require.NoError(t, checked.Check())
	}
	require.Empty(t, seen.Missing(&auditv1.AuditPage{}))
	s := checked.Paged
	for range 5 {
		record(t, s, s, pageEntries/2)
		require.NoError(t, journaltest.RoundTrip(s, NewState))
	}
	require.Equal(t, 3, s.newest())
	require.Len(t, s.Page(ownerOf(0)).(*auditv1.AuditPage).GetWalSeqSteps(), pageEntries)
	require.Empty(t, s.Page(ownerOf(0)).(*auditv1.AuditPage).GetLastHash())
	require.NotEmpty(t, s.Page(ownerOf(3)).(*auditv1.AuditPage).GetLastHash())
	for _, o := range []snapshot.Owner{
		{},
		{ID: "4"},
		{ID: "-1"},
		{ID: "+1"},
		{ID: "01"},
		{Namespace: "acme", ID: "1"},
		{ID: "99999999999999999999"},
	} {
		require.Nil(t, s.Page(o), o)
	}
}

func TestPagesThatAreInvalid(t *testing.T) {
	page := func(first uint64, n int, last string) *auditv1.AuditPage {
		p := &auditv1.AuditPage{WalSeqSteps: make([]uint64, n), AtSteps: make([]int64, n), LastHash: last}
		for i := range n {
			p.WalSeqSteps[i] = 1
		}
		p.WalSeqSteps[0] = first
		return p
	}
	const first = 10 * pageEntries // the wal_seq with which pages begin here
	full, newest := page(first, pageEntries, ""), page(first, 7, "hash")
	uneven := page(first, 7, "hash")
	uneven.AtSteps = uneven.GetAtSteps()[1:]
	type given struct {
		id   string
		page proto.Message
	}
	for i, c := range []struct {
		pages []given
		want  string
	}{
		{[]given{{"0", &emptypb.Empty{}}}, "a page of type *emptypb.Empty"},
		{[]given{{"x", newest}}, "is no page"},
		{[]given{{strconv.Itoa(1 << 40), newest}}, "is no page"},
		{[]given{{"0", &auditv1.AuditPage{}}}, "page 0 has 0 positions"},
		{[]given{{"0", &auditv1.AuditPage{LastHash: "hash"}}}, "page 0 has 0 positions"},
		{[]given{{"0", uneven}}, "page 0 has 7 positions and 6 times"},
		{[]given{{"0", page(first, 7, "")}}, "page 0 has 7 positions"},
		{[]given{{"0", page(first, pageEntries+1, "hash")}}, "page 0 has 4097 positions"},
		{[]given{{"0", page(0, 7, "hash")}}, "page 0 begins with event 0"},
		{[]given{{"1", page(pageEntries, 7, "hash")}}, "page 1 begins with event 4096"},
		{[]given{{"2000000000", newest}}, "page 2000000000 begins with event 40960"},
		{[]given{{"0", full}, {"1", newest}, {"2", full}}, "page 2 is beyond the newest entry"},
		{[]given{{"1", newest}, {"1", full}}, "page 1 is beyond the newest entry"},
		{[]given{{"1", newest}, {"0", newest}}, "page 0 is beyond the newest entry"},
		{[]given{{"1", full}, {"0", newest}}, "there are pages beyond it"},
		{[]given{{"0", full}, {"0", full}}, "a second page 0"},
		{[]given{{"1", newest}, {"0", full}, {"0", full}}, "a second page 0"},
	} {
		s := NewState()
		for _, g := range c.pages[:len(c.pages)-1] {
			require.NoError(t, s.AddPage(snapshot.Owner{ID: g.id}, g.page), "%d: %s", i, c.want)
		}
		bad := c.pages[len(c.pages)-1]
		require.ErrorContains(t, s.AddPage(snapshot.Owner{ID: bad.id}, bad.page), c.want, fmt.Sprint(i))
	}
}
