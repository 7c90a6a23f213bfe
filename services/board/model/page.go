package model

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// There is a page of each board, of each session whose orchestrator was deleted, and of each block of the runs
// that ended last. The id of an owner begins with its kind.
const (
	boardPage   = "board/"   // then the session, '/', the WAL
	sessionPage = "session/" // then the session
	endedPage   = "ended/"   // then the number of the block
)

// pageRuns is how many ended runs a page has. It divides keptRuns, so that whole pages are forgotten.
const pageRuns = 64

// owner returns the owner of the page of a board.
func (k BoardKey) owner() snapshot.Owner {
	return snapshot.Owner{
		Namespace: k.Namespace, ID: boardPage + url.PathEscape(k.Session) + "/" + url.PathEscape(k.WAL),
	}
}

// sessionOwner returns the owner of the page of a session.
func sessionOwner(k Key) snapshot.Owner {
	return snapshot.Owner{Namespace: k.Namespace, ID: sessionPage + k.ID}
}

// endedOwner returns the owner of the page of a block of ended runs.
func endedOwner(block int) snapshot.Owner { return snapshot.Owner{ID: endedPage + strconv.Itoa(block)} }

// boardOf returns the key of the board that an owner is; ok is false if the owner is no board.
func boardOf(o snapshot.Owner) (k BoardKey, ok bool) {
	names, is := strings.CutPrefix(o.ID, boardPage)
	session, wal, _ := strings.Cut(names, "/")
	k.Namespace = o.Namespace
	k.Session, _ = url.PathUnescape(session)
	k.WAL, _ = url.PathUnescape(wal)
	return k, is && k.owner() == o
}

// blockOf returns the number of the block of ended runs that an owner is; ok is false if the owner is no such block.
func blockOf(o snapshot.Owner) (block int, ok bool) {
	number, is := strings.CutPrefix(o.ID, endedPage)
	block, err := strconv.Atoi(number)
	return block, is && err == nil && block >= 0 && endedOwner(block) == o
}

// Owners implements journal.Paged.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	b := s.ActiveBoard(plane.KeyOf(ev.Namespace, ev.SessionID), ev.TaskID)
	if row, err := eventRows.Of(ev); err == nil {
		row.pages(s, b, ev, touch)
	} else if b != nil {
		touch(b.Key.owner()) // it is damaged now
	}
}

// touchEnds calls touch with the pages of ended runs that change when n further runs end: those to which
// the n runs are added, and those whose runs then leave memory.
func (s *State) touchEnds(n int, touch func(snapshot.Owner)) {
	next := s.dropped + len(s.ended)
	for block := next / pageRuns; block*pageRuns < next+n; block++ {
		touch(endedOwner(block))
	}
	if len(s.ended)+n < 2*keptRuns {
		return
	}
	for block := s.dropped / pageRuns; block*pageRuns < next+n-keptRuns; block++ {
		touch(endedOwner(block))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &boardv1.BoardPage{} }

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	if k, ok := boardOf(o); ok {
		if se := s.Sessions[plane.KeyOf(k.Namespace, k.Session)]; se != nil && se.WAL(k.WAL) != nil {
			return &boardv1.BoardPage{Content: &boardv1.BoardPage_Board{Board: se.WAL(k.WAL).page(se)}}
		}
		return nil
	}
	if block, ok := blockOf(o); ok {
		if from := block*pageRuns - s.dropped; from >= 0 && from < len(s.ended) {
			return &boardv1.BoardPage{Content: &boardv1.BoardPage_EndedRuns{EndedRuns: s.endedRuns(from)}}
		}
		return nil
	}
	if id, is := strings.CutPrefix(o.ID, sessionPage); is && s.Deleted[plane.KeyOf(o.Namespace, id)] {
		at := timestamppb.New(s.DeletedAt[plane.KeyOf(o.Namespace, id)])
		return &boardv1.BoardPage{
			Content: &boardv1.BoardPage_Session{Session: &boardv1.StoredSession{
				OrchestratorDeleted: true,
				DeletedAt:           at,
			}},
		}
	}
	return nil
}

// endedRuns returns the page of the block of ended runs that begins at an index of ended.
func (s *State) endedRuns(from int) *boardv1.EndedRuns {
	keys := s.ended[from:min(from+pageRuns, len(s.ended))]
	out := &boardv1.EndedRuns{Runs: make([]*boardv1.EndedRun, len(keys))}
	for i, k := range keys {
		r := s.Runs[k]
		out.Runs[i] = &boardv1.EndedRun{
			Run: r.Record, Namespace: k.Namespace, SessionId: r.Board.Key.Session, WalName: r.Board.Key.WAL,
			LeaseExpired: r.LeaseExpired,
		}
	}
	return out
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, is := page.(*boardv1.BoardPage)
	if !is {
		return fmt.Errorf("board: a page of type %T", page)
	}
	var err error
	switch content := p.GetContent().(type) {
	case *boardv1.BoardPage_Board:
		err = s.addBoardPage(o, content.Board)
	case *boardv1.BoardPage_EndedRuns:
		err = s.addEndedRuns(o, content.EndedRuns.GetRuns())
	case *boardv1.BoardPage_Session:
		id, is := strings.CutPrefix(o.ID, sessionPage)
		if !is || !content.Session.GetOrchestratorDeleted() {
			return fmt.Errorf("board: %q of %q has no page of a session whose orchestrator was deleted", o.ID,
				o.Namespace)
		}
		k := plane.KeyOf(o.Namespace, id)
		s.Deleted[k], s.DeletedAt[k] = true, content.Session.GetDeletedAt().AsTime()
	default:
		return fmt.Errorf("board: the page of %q of %q is about nothing that is known", o.ID, o.Namespace)
	}
	if err != nil {
		return fmt.Errorf("board: the page of %q of %q: %w", o.ID, o.Namespace, err)
	}
	return nil
}

// addEndedRuns adds a block of ended runs. Their boards may be added later.
func (s *State) addEndedRuns(o snapshot.Owner, runs []*boardv1.EndedRun) error {
	block, ok := blockOf(o)
	if !ok || len(runs) == 0 || len(runs) > pageRuns {
		return fmt.Errorf("it has %d ended runs", len(runs))
	}
	first := block * pageRuns
	if len(s.ended) == 0 {
		s.dropped = first
	}
	if before := s.dropped - first; before > 0 {
		s.ended, s.dropped = append(make([]Key, before, before+len(s.ended)), s.ended...), first
	}
	if missing := first + len(runs) - s.dropped - len(s.ended); missing > 0 {
		s.ended = append(s.ended, make([]Key, missing)...)
	}
	for i, stored := range runs {
		rec := stored.GetRun()
		k := plane.KeyOf(stored.GetNamespace(), rec.GetRunId())
		switch {
		case k.ID == "" || stored.GetWalName() == "":
			return fmt.Errorf("ended run %d has no record or no board", i+1)
		case s.Runs[k] != nil:
			return fmt.Errorf("run %s was read before", k.ID)
		case rec.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING:
			return fmt.Errorf("run %s has not ended", k.ID)
		}
		r := &Run{Record: rec, LeaseExpired: stored.GetLeaseExpired(), place: first + i}
		r.Board = s.boardFor(BoardKey{stored.GetNamespace(), stored.GetSessionId(), stored.GetWalName()})
		r.Allowed = setOf(rec.GetAllowedStepIds())
		s.Runs[k], s.ended[r.place-s.dropped] = r, k
	}
	return nil
}

// boardFor returns the board with a key. If the board's own page was not read yet, the board is empty;
// reading that page later fills the same board.
func (s *State) boardFor(k BoardKey) *Board {
	if se := s.Sessions[plane.KeyOf(k.Namespace, k.Session)]; se != nil && se.WAL(k.WAL) != nil {
		return se.WAL(k.WAL)
	}
	b := s.awaited[k]
	if b == nil {
		b = NewBoard(k, "")
		if s.awaited == nil {
			s.awaited = map[BoardKey]*Board{}
		}
		s.awaited[k] = b
	}
	return b
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for _, se := range s.Sessions {
		for _, b := range se.WALs {
			fn(b.Key.owner())
		}
	}
	for k := range s.Deleted {
		fn(sessionOwner(k))
	}
	for from := 0; from < len(s.ended); from += pageRuns {
		fn(endedOwner((s.dropped + from) / pageRuns))
	}
}
