package model

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

// endedBoard lets a session have a board that ends, and returns what its WAL says of it: a board to which the lines
// were applied, and no State.
func endedBoard(t *testing.T, s *State, session, wal string) *Board {
	j := &journalOf{t: t, seq: 300 + uint64(len(s.Sessions))*100}
	replayed := NewBoard(BoardKey{"acme", session, wal}, wal)
	apply := func(step string, p proto.Message) {
		ev := j.event(wal, step, p)
		ev.SessionID = session
		require.NoError(t, s.Apply(ev))
		if InWAL(ev) {
			replayed.AddLine(ev)
			require.NoError(t, replayed.Apply(ev))
		}
	}
	apply("", created(wal, input("a"), input("b", "a"), input("c")))
	apply("a", &boardv1.TaskStepReady{})
	apply("", &boardv1.TaskRunning{})
	apply("", runOf("run_"+wal))
	apply("a", claimBy("run_"+wal, ""))
	apply("a", &boardv1.TaskStepFailed{Reason: "no way"})
	apply("c", &boardv1.TaskStepCancelled{Reason: "not needed"})
	apply("", &boardv1.BoardTerminating{Status: BoardFailed})
	apply("", &boardv1.TaskFailed{Reason: "it cannot be done"})
	return replayed
}

// requireEnded requires that a board is as its WAL says.
func requireEnded(t *testing.T, want, got *Board) {
	for _, view := range []func(*Board) *boardv1.Board{(*Board).Overview, (*Board).WithDiagnostics} {
		w, g := view(want), view(got)
		w.RootStepIds = nil // steps are not in memory
		require.True(t, proto.Equal(w, g), "%v and %v", w, g)
	}
	require.Equal(t, want.LinePositions(0, 100), got.LinePositions(0, 100))
	require.Equal(t, want.LinePositions(3, 2), got.LinePositions(3, 2))
	require.Equal(t, []any{want.ID, want.Key, want.Status, want.Lines, want.first, want.LastPosition},
		[]any{got.ID, got.Key, got.Status, got.Lines, got.first, got.LastPosition})
	require.True(t, want.UpdatedAt.Equal(got.UpdatedAt))
	require.Equal(t, want.Count, got.Whole().Count)
	require.Empty(t, got.Runs)
	require.Nil(t, got.Terminating)
	require.Error(t, got.CheckOpen())
	require.NoError(t, got.CheckUsable())
}

// What an ended board has but lists do not need is in the file, or in memory in few bytes, and readers do not see
// where.
func TestEndedBoardsLeaveMemory(t *testing.T) {
	for name, f := range map[string]*resident.File{"file": journaltest.NewFile(t), "memory": nil} {
		t.Run(name, func(t *testing.T) {
			s := fresh()
			s.UseFile(f)
			want := endedBoard(t, s, "keeper", "one")
			second := endedBoard(t, s, "other", "two")
			require.NoError(t, s.Apply((&journalOf{t: t, seq: 900}).event("open", "", created("open", input("a")))))
			found := must.Value(s.FindWAL(want.Key))(t)
			require.Same(t, closed, found.content)
			requireEnded(t, want, found)
			require.Same(t, found, must.Value(s.FindBoard(keeper, "one", ""))(t))
			run := must.Value(s.FindRun(keeper, "one", "run_one"))(t)
			require.Equal(t, boardv1.RunStatus_RUN_STATUS_CANCELLED, run.GetStatus())
			runs, _ := s.RunsOf(found, 10, false)
			require.Len(t, runs, 1)
			require.Equal(t, f != nil, found.stored.Stored())
			counts := map[bool]resident.Counts{true: {Resident: 1, Evicted: 2}, false: {Resident: 3}}
			require.Equal(t, counts[f != nil], s.Counts())

			require.NoError(t, journaltest.RoundTrip(s, fresh))
			read := fresh()
			read.UseFile(f)
			s.AllOwners(func(o snapshot.Owner) { require.NoError(t, read.AddPage(o, proto.Clone(s.Page(o)))) })
			require.Equal(t, counts[f != nil], read.Counts())
			found = must.Value(read.FindWAL(second.Key))(t)
			requireEnded(t, second, found)
			require.NoError(t, journaltest.Same(s, read))
		})
	}
}

// Nothing of the boards of a session that is erased is left in the file.
func TestEndedBoardsAreErased(t *testing.T) {
	f := journaltest.NewFile(t)
	s := fresh()
	s.UseFile(f)
	endedBoard(t, s, "keeper", "one")
	left := f.Bytes()
	endedBoard(t, s, "other", "two")
	require.NoError(t, s.Apply(&journal.Event{Namespace: "acme", Payload: &boardv1.OwnerDeleted{AgentId: "other"}}))
	s.Erase(func(_, id string) bool { return id == "other" }, func(snapshot.Owner) {})
	require.Equal(t, left, f.Bytes())
	require.Equal(t, resident.Counts{Evicted: 1}, s.Counts())
}

// As long as the file cannot be written, ended boards are in memory.
func TestFileOfEndedBoardsFails(t *testing.T) {
	f := journaltest.NewFile(t)
	require.NoError(t, f.Close())
	s := fresh()
	s.UseFile(f)
	want := map[string]*Board{}
	for i := range 4 {
		session := fmt.Sprint("session-", i)
		want[session] = endedBoard(t, s, session, "one")
	}
	n, more, err := s.Evict(math.MaxInt, false)
	require.Error(t, err)
	require.False(t, more)
	require.Zero(t, n)
	require.Equal(t, resident.Counts{Resident: 4}, s.Counts())
	require.NoError(t, s.Apply(&journal.Event{Namespace: "acme", Payload: &boardv1.OwnerDeleted{AgentId: "session-1"}}))
	s.Erase(func(_, id string) bool { return id == "session-1" }, func(snapshot.Owner) {})
	delete(want, "session-1")
	all := func() {
		for session, b := range want {
			found := must.Value(s.FindWAL(BoardKey{"acme", session, "one"}))(t)
			requireEnded(t, b, found)
		}
	}
	all()
	s.UseFile(journaltest.NewFile(t))
	n, more, err = s.Evict(2, true)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, 2, n)
	require.Equal(t, resident.Counts{Resident: 1, Evicted: 2}, s.Counts())
	n, more, err = s.Evict(2, true)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, 1, n)
	require.Equal(t, resident.Counts{Evicted: 3}, s.Counts())
	all()
}

// Whoever needs an ended board that cannot be read from the file panics with the error that has the partition loaded
// again. Who needs only what lists of WALs have does not read it.
func TestUnreadableEndedBoard(t *testing.T) {
	f := journaltest.NewFile(t)
	s := fresh()
	s.UseFile(f)
	want := endedBoard(t, s, "keeper", "one")
	require.NoError(t, f.Close())
	b := must.Value(s.FindWAL(want.Key))(t)
	line := &journal.Event{
		Namespace: "acme", SessionID: "keeper", TaskID: "one", WalSeq: want.first, Payload: &boardv1.TaskRunning{},
	}
	require.True(t, s.Needs(line, want.UpdatedAt))
	require.False(t, s.Needs(line, want.UpdatedAt.Add(time.Second)))
	for name, read := range map[string]func(){
		"list":  func() { b.Overview() },
		"lines": func() { b.LinePositions(0, 1) },
		"page":  func() { s.Page(b.Key.owner()) },
	} {
		require.ErrorIs(t, snapshot.Guarded(read), resident.ErrUnreadable, name)
	}
}

// A session finds its boards by the names of their WALs, in whatever order they came.
func TestWALsByName(t *testing.T) {
	s := fresh()
	j := &journalOf{t: t}
	for _, wal := range []string{"m", "a", "z", "b"} {
		require.NoError(t, s.Apply(j.event("board-"+wal, "", created(wal, input("x")))))
	}
	se := s.Sessions[plane.KeyOf("acme", "keeper")]
	for _, wal := range []string{"m", "a", "z", "b"} {
		require.Equal(t, "board-"+wal, se.WAL(wal).ID)
	}
	require.Nil(t, se.WAL("c"))
	require.Nil(t, se.WAL(""))
	require.Len(t, se.byWAL, 4)
}
