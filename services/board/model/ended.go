package model

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/snapshot"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/resident"
)

var _ snapshot.Resident = (*State)(nil)

// closed is the empty content that all boards have in memory after their end. Nobody changes it.
var closed = &content{}

// contents is where the content of ended boards is.
type contents struct {
	file   *resident.File // nil: in memory
	boards int            // how many boards the state has, active and ended
	stored int            // ended ones whose content is in the file
	kept   []*Board       // ended ones whose content is in memory because the file could not be written
}

// Comparable returns what tests compare (see pagestest.Same): nothing, since the content of boards is the same wherever
// it is.
func (contents) Comparable() any { return struct{}{} }

// offload moves the content of a board that has ended to the file. It stays in memory, encoded, if there is no file
// or the file cannot be written. A board that has ended never changes.
func (s *State) offload(b *Board) {
	p := b.page(nil)
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return // the content stays as it is
	}
	b.stored, b.content = resident.NewBlob(s.contents.file, content), closed
	switch {
	case b.stored.Stored():
		s.contents.stored++
	case s.contents.file != nil:
		s.contents.kept = append(s.contents.kept, b)
	}
}

// freeContents frees the stored contents of the boards of a session that is erased, all of which have ended.
func (s *State) freeContents(se *session) {
	s.contents.boards -= len(se.WALs)
	for _, b := range se.Ended {
		if b.stored.Stored() {
			s.contents.stored--
		}
		b.stored.Free()
	}
	s.contents.kept = slices.DeleteFunc(s.contents.kept, func(b *Board) bool { return slices.Contains(se.Ended, b) })
}

// Whole returns the board with its content. It is b itself if b is active, and otherwise a copy without steps, whose
// content is read back. Whole panics with resident.ErrUnreadable if the file cannot be read.
func (b *Board) Whole() *Board {
	if b.content != closed {
		return b
	}
	p := b.storedPage()
	whole := &Board{Key: b.Key, content: &content{}}
	whole.set(p)
	whole.setCounts(p.GetCounts())
	if err := whole.setLines(p.GetLinePositions()); err != nil {
		panic(fmt.Errorf("%w: %w", resident.ErrUnreadable, err))
	}
	return whole
}

// storedPage returns the page of a board that has ended. It panics as Whole does.
func (b *Board) storedPage() *boardv1.StoredBoard {
	p := &boardv1.StoredBoard{}
	if err := proto.Unmarshal(b.stored.Bytes(), p); err != nil {
		panic(fmt.Errorf("%w: %w", resident.ErrUnreadable, err))
	}
	return p
}

// UseFile implements snapshot.Resident.
func (s *State) UseFile(f *resident.File) { s.contents.file = f }

// Evict implements snapshot.Resident: it stores the contents that offload could not write to the file. There are no
// others, since offload writes them when a board ends.
func (s *State) Evict(most int, _ bool) (n int, more bool, err error) {
	for ; n < most && len(s.contents.kept) > 0; n++ {
		b := s.contents.kept[0]
		if b.stored, err = b.stored.Store(s.contents.file); err != nil {
			return n, false, err
		}
		s.contents.kept = s.contents.kept[1:]
		s.contents.stored++
	}
	return n, len(s.contents.kept) > 0, nil
}

// Counts implements snapshot.Resident. It counts boards; an evicted one is one whose content is in the file.
func (s *State) Counts() resident.Counts {
	return resident.Counts{Resident: s.contents.boards - s.contents.stored, Evicted: s.contents.stored}
}
