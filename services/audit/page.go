package audit

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
)

// pageEntries is how many entries have their positions in one page. A snapshot depends on it, so it must not
// change.
const pageEntries = 4096

var _ journal.Paged = (*State)(nil)

// ownerOf returns the owner of a page, which is its number from 0.
func ownerOf(number int) snapshot.Owner { return snapshot.Owner{ID: strconv.Itoa(number)} }

// numberOf returns the number of the page of an owner, false if it is no page of this plane.
func numberOf(o snapshot.Owner) (int, bool) {
	n, err := strconv.ParseUint(o.ID, 10, 31)
	return int(n), err == nil && ownerOf(int(n)) == o
}

// newest returns the number of the page of the newest entry, -1 if there is none.
func (s *State) newest() int { return (len(s.positions)+pageEntries-1)/pageEntries - 1 }

// Owners implements journal.Paged. An entry changes only the newest page, unless it is the first of a new page:
// then the page before changes for the last time, since only the newest page has the hash of the last entry.
func (s *State) Owners(_ *journal.Event, touch func(snapshot.Owner)) {
	number := len(s.positions) / pageEntries
	if newest := s.newest(); newest >= 0 && newest != number {
		touch(ownerOf(newest))
	}
	touch(ownerOf(number))
}

// AllOwners implements journal.Paged. It passes the pages in the order of their numbers.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for n := range s.newest() + 1 {
		fn(ownerOf(n))
	}
}

// NewPage implements journal.Paged. It returns an empty AuditPage.
func (s *State) NewPage() proto.Message { return &auditv1.AuditPage{} }

// Page implements journal.Paged. It returns nil for an owner that is no page of this plane, and for a page
// beyond the newest one. Only the newest page has the hash of the last entry.
func (s *State) Page(o snapshot.Owner) proto.Message {
	number, ok := numberOf(o)
	if !ok || number > s.newest() {
		return nil
	}
	entries := s.positions[number*pageEntries : min((number+1)*pageEntries, len(s.positions))]
	p := &auditv1.AuditPage{WalSeqSteps: make([]uint64, len(entries)), AtSteps: make([]int64, len(entries))}
	var before position
	for i, e := range entries {
		p.WalSeqSteps[i], p.AtSteps[i] = e.walSeq-before.walSeq, e.at-before.at
		before = e
	}
	if number == s.newest() {
		p.LastHash = s.last
	}
	return p
}

// AddPage implements journal.Paged. Pages may be added in any order. The positions of pages that are not added yet
// are zero.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, ok := page.(*auditv1.AuditPage)
	if !ok {
		return fmt.Errorf("audit: a page of type %T", page)
	}
	number, ok := numberOf(o)
	if !ok {
		return fmt.Errorf("audit: %v is no page", o)
	}
	n := len(p.GetWalSeqSteps())
	full := n == pageEntries && len(p.GetAtSteps()) == n
	switch {
	case n == 0 || n > pageEntries || len(p.GetAtSteps()) != n || p.GetLastHash() == "" && !full:
		return fmt.Errorf("audit: page %d has %d positions and %d times", number, n, len(p.GetAtSteps()))
	case p.GetWalSeqSteps()[0] <= uint64(number)*pageEntries:
		// Each entry is an event of its own. This also bounds the memory that a wrong number takes.
		return fmt.Errorf("audit: page %d begins with event %d", number, p.GetWalSeqSteps()[0])
	}
	first := number * pageEntries
	end := first + n
	switch {
	case s.last != "" && (p.GetLastHash() != "" || end > len(s.positions)):
		return fmt.Errorf("audit: page %d is beyond the newest entry", number)
	case p.GetLastHash() != "" && end < len(s.positions):
		return fmt.Errorf("audit: page %d has the newest entry, and there are pages beyond it", number)
	case first < len(s.positions) && s.positions[first].walSeq != 0:
		return fmt.Errorf("audit: a second page %d", number)
	}
	if more := end - len(s.positions); more > 0 {
		s.positions = append(s.positions, make([]position, more)...)
	}
	var at position
	for i := range n {
		at = position{at.walSeq + p.GetWalSeqSteps()[i], at.at + p.GetAtSteps()[i]}
		s.positions[first+i] = at
	}
	if p.GetLastHash() != "" {
		s.last = p.GetLastHash()
	}
	return nil
}
