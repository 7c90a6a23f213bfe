package model

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

func fresh() *State { return NewState(time.Minute) }

// journalOf applies events of the session keeper to a state that is written and read in pages.
type journalOf struct {
	t   require.TestingT
	st  *journaltest.CheckedState[*State]
	seq uint64
}

func (j *journalOf) event(board, step string, payload proto.Message) *journal.Event {
	j.seq++
	return &journal.Event{
		WalSeq: j.seq, Type: string(payload.ProtoReflect().Descriptor().Name()), Namespace: "acme", SessionID: "keeper",
		TaskID: board, StepID: step,
		Payload: payload, CreatedAt: time.Unix(int64(j.seq), 1000).UTC(), Principal: "op", Role: "operator",
		ActorAgentID: "keeper", ActorRunID: "run_op",
	}
}

func (j *journalOf) add(board, step string, payload proto.Message) {
	require.NoError(j.t, j.st.Apply(j.event(board, step, payload)))
}

func (j *journalOf) board(wal string) *Board { return j.st.Paged.Sessions[keeper].WAL(wal) }

var keeper = plane.KeyOf("acme", "keeper")

func created(wal string, steps ...*boardv1.StepInput) *boardv1.TaskCreated {
	return &boardv1.TaskCreated{
		WalName: wal, Title: "Board " + wal, Summary: "of " + wal, DefaultWorkerPoolId: DefaultPool,
		CreatedByAgentId: "keeper", CreatedByRunId: "run_0", Steps: steps,
	}
}

func input(id string, deps ...string) *boardv1.StepInput {
	return &boardv1.StepInput{StepId: id, Title: "Step " + id, DependsOnStepIds: deps}
}

func dispatchOf(id string, allowed ...string) *boardv1.StandingDispatchOpened {
	return &boardv1.StandingDispatchOpened{Dispatch: &boardv1.StandingDispatch{
		DispatchId: id, WorkerPoolId: DefaultPool, MaxParallel: 2, AllowedStepIds: allowed, Instruction: "go",
		Open: true,
	}}
}

func runOf(id string, allowed ...string) *boardv1.WorkerDispatched {
	return &boardv1.WorkerDispatched{Run: &boardv1.WorkerRun{
		RunId: id, SessionId: "keeper", WorkerPoolId: DefaultPool, WorkerId: "w", AllowedStepIds: allowed,
		Status: boardv1.RunStatus_RUN_STATUS_RUNNING,
	}}
}

func claimBy(run, dispatch string) *boardv1.TaskStepClaimed {
	return &boardv1.TaskStepClaimed{
		ClaimedByAgentId: "w", ClaimedByRunId: run, DispatchId: dispatch,
		LeaseExpiresAt: timestamppb.New(time.Unix(1e9, 0)),
	}
}

// TestPagesHaveAllOfABoard leads boards through everything that can happen to them, with a look at the pages after
// each event.
func TestPagesHaveAllOfABoard(t *testing.T) {
	var seen journaltest.Seen
	j := &journalOf{t: t, st: journaltest.Checked(fresh, 1, &seen)}
	j.add("one", "", created("one", input("a"), input("b", "a"), input("c"), input("d"), input("e", "b", "a")))
	for _, id := range []string{"a", "c", "d"} {
		j.add("one", id, &boardv1.TaskStepReady{})
	}
	j.add("one", "", &boardv1.TaskRunning{})
	j.add("one", "", dispatchOf("dsp_2"))
	j.add("one", "", dispatchOf("dsp_1", "a", "e"))
	j.add("one", "a", claimBy("run_1", "dsp_1"))
	j.add("one", "a", &boardv1.TaskStepStarted{})
	j.add("one", "", &boardv1.StandingDispatchClosed{DispatchId: "dsp_1"})
	require.True(t, j.board("one").Runs["run_1"].Dispatch.closed)
	j.add("one", "", runOf("run_2", "c", "d"))
	j.add("one", "c", claimBy("run_2", ""))
	j.add("one", "c", &boardv1.TaskStepCancelled{Reason: "no"})
	j.add("one", "", &boardv1.TaskUpdated{Operations: []*boardv1.Operation{
		{Op: OpDeleteStep, StepId: "c"},
		{Op: OpAddStep, Step: input("f", "e")},
		{Op: OpAddStep, Step: input("c", "d")},
		{Op: OpAddStep, Step: input("g")},
	}})
	require.NotSame(t, j.board("one").Steps["c"], j.board("one").Runs["run_2"].Step)
	j.add("one", "", &boardv1.TaskUpdated{Operations: []*boardv1.Operation{
		{Op: OpAddDependency, StepId: "b", DependsOnStepId: "d"},
		{Op: OpAddDependency, StepId: "f", DependsOnStepId: "a"},
		{Op: OpDeleteStep, StepId: "g"},
	}})
	j.add("one", "", runOf("run_3"))
	j.add("one", "", &boardv1.WorkerRunEnded{
		RunId: "run_3", Status: boardv1.RunStatus_RUN_STATUS_FINISHED,
		NoStepClaimed: true,
	})
	j.add("one", "d", claimBy("run_4", "dsp_2"))
	j.add("one", "d", &boardv1.TaskStepLeaseExpired{ClaimedByAgentId: "w", ClaimedByRunId: "run_4"})
	j.add("one", "d", &boardv1.TaskStepReady{})
	j.add("one", "d", claimBy("run_5", "dsp_2"))
	j.add("one", "d", &boardv1.TaskStepCompleted{})
	j.add("one", "", &boardv1.WorkerRunEnded{
		RunId: "run_5", Status: boardv1.RunStatus_RUN_STATUS_FINISHED,
		WorkerResult: "behind its step",
	})

	var statuses []*boardv1.StepInput
	for _, id := range []string{
		"pending", "ready", "claimed", "running", "blocked", "completed", "failed",
		"cancelled",
	} {
		statuses = append(statuses, input(id))
	}
	j.add("two", "", created("two", append(statuses, input("completed2"), input("failed2"), input("failed3"))...))
	j.add("two", "", dispatchOf("dsp_3"))
	for _, id := range []string{"ready", "claimed", "running", "completed", "completed2"} {
		j.add("two", id, &boardv1.TaskStepReady{})
	}
	j.add("two", "claimed", claimBy("run_6", "dsp_3"))
	j.add("two", "running", claimBy("run_7", "dsp_3"))
	j.add("two", "running", &boardv1.TaskStepStarted{})
	j.add("two", "blocked", &boardv1.TaskStepBlocked{Reason: "why"})
	j.add("two", "cancelled", &boardv1.TaskStepCancelled{})
	for _, id := range []string{"completed", "completed2"} {
		j.add("two", id, &boardv1.TaskStepCompleted{})
	}
	for _, id := range []string{"failed", "failed2", "failed3"} {
		j.add("two", id, &boardv1.TaskStepFailed{Reason: "why"})
	}
	j.add("one", "", &boardv1.BoardTerminating{Status: BoardFailed, RunIds: []string{"run_1"}})
	j.add("one", "", &boardv1.ChildAgentCancelTimeout{RunIds: []string{"run_1"}})
	j.add("two", "", &boardv1.TaskBlocked{Reason: "wait"})
	j.add("two", "", &boardv1.TaskReopened{Reason: "go on"})
	j.add("two", "", &boardv1.TaskCompleted{Reason: "done"})
	j.add("one", "", &boardv1.TaskFailed{Reason: "all of it"})
	require.Equal(t, [9]int{0, 1, 1, 1, 1, 1, 2, 3, 1}, j.board("two").Whole().Count)
	j.add("two", "", &boardv1.WorkerRunEnded{
		RunId: "run_6", Status: boardv1.RunStatus_RUN_STATUS_CANCELLED,
		WorkerResult: "behind its board",
	})
	require.Len(t, j.st.Paged.Sessions[keeper].Ended, 2)

	j.add("one", "", created("again", input("a"), input("b")))
	j.add("one", "", dispatchOf("dsp_4"))
	j.add("one", "", runOf("run_8", "a", "c"))
	j.add("one", "", &boardv1.TaskUpdated{Operations: []*boardv1.Operation{
		{Op: OpAddStep, Step: input("c", "a")},
		{Op: OpAddDependency, StepId: "b", DependsOnStepId: "nowhere"},
		{Op: OpDeleteStep, StepId: "nowhere"},
	}})
	require.True(t, j.board("again").IsDamaged())
	j.add("one", "a", &boardv1.TaskStepReady{})
	j.add("one", "", runOf("run_9"))
	j.add("one", "", created("newer", input("a")))
	var many []*boardv1.StepInput
	for i := range 200 {
		many = append(many, input(fmt.Sprint("s", i)))
	}
	j.add("wide", "", created("wide", many...))
	for _, id := range []string{"s0", "s199"} {
		j.add("wide", id, &boardv1.TaskStepReady{})
	}
	j.add("wide", "s199", claimBy("run_10", ""))
	j.add("", "", &boardv1.OwnerDeleted{AgentId: "keeper"})
	j.add("", "", &boardv1.OwnerDeleted{AgentId: "without-boards"})
	require.NoError(t, j.st.Check())
	require.Empty(t, seen.Missing(&boardv1.BoardPage{}))

	st := j.st.Paged
	damaged := func(board string) {
		require.NoError(t,
			st.Quarantine(journal.Damage{
				WalSeq: 900, Frame: 7,
				Line: []byte(`{"event_type":"step_updated","namespace":"acme","session_id":"keeper","task_id":"` +
					board + `"`), Cause: fmt.Errorf("\xff"),
			}))
		require.NoError(t, journaltest.RoundTrip(st, fresh))
	}
	damaged("one")
	damaged("unseen")
	require.Error(t, st.ActiveBoard(keeper, "unseen").CheckUsable())
}

// TestPagesOfRunsThatEndedLongAgo ends so many runs that the first ones are forgotten, and with them their pages.
func TestPagesOfRunsThatEndedLongAgo(t *testing.T) {
	j := &journalOf{t: t, st: journaltest.Checked(fresh, 0, nil)}
	j.add("one", "", created("one", input("a")))
	j.add("two", "", created("two", input("a")))
	end := func(from, n int) {
		for i := range n {
			run := fmt.Sprint("run_", from+i)
			j.add("one", "", runOf(run))
			j.add("one", "", &boardv1.WorkerRunEnded{RunId: run, Status: boardv1.RunStatus_RUN_STATUS_FINISHED})
		}
	}
	end(0, 2*keptRuns-2)
	require.NoError(t, j.st.Check())
	for i := range 5 { // the last of them end together
		j.add("two", "", runOf(fmt.Sprint("run_of_two_", i)))
	}
	j.add("two", "", &boardv1.TaskCancelled{})
	require.NoError(t, j.st.Check())
	require.Len(t, j.st.Paged.ended, keptRuns+3)
	require.Nil(t, j.st.Paged.Page(endedOwner(0)))
	end(2*keptRuns, 100)
	require.NoError(t, j.st.Check())
	var touched []string
	j.st.Paged.Owners(j.event("one", "", &boardv1.WorkerRunEnded{RunId: "run_5000"}), func(o snapshot.Owner) {
		touched = append(touched, o.ID)
	})
	require.Equal(t, []string{"ended/78"}, touched, "only the page with the run is touched")
}

// TestAnInvalidPageIsRefused reads pages that no state writes.
func TestAnInvalidPageIsRefused(t *testing.T) {
	step := func(id string, deps ...string) *boardv1.Step {
		return &boardv1.Step{StepId: id, Status: StepPending, DependsOnStepIds: deps}
	}
	run := func(change func(*boardv1.WorkerRun)) *boardv1.WorkerRun {
		r := runOf("run_1").GetRun()
		change(r)
		return r
	}
	for says, change := range map[string]func(*boardv1.StoredBoard){
		`it has WAL "two"`:          func(b *boardv1.StoredBoard) { b.WalName = "two" },
		"it has WAL \"one\" of ses": func(b *boardv1.StoredBoard) { b.SessionId = "other" },
		"the board has no id":       func(b *boardv1.StoredBoard) { b.BoardId = "" },
		"unknown status 0":          func(b *boardv1.StoredBoard) { b.Status = 0 },
		"unknown status 99":         func(b *boardv1.StoredBoard) { b.Status = 99 },
		"the WAL has no lines":      func(b *boardv1.StoredBoard) { b.LinePositions = nil },
		"line 2 is cut off":         func(b *boardv1.StoredBoard) { b.LinePositions = []byte{1, 0x80} },
		"has no record or the":      func(b *boardv1.StoredBoard) { b.Steps[1] = &boardv1.Step{} },
		"the unknown status 9":      func(b *boardv1.StoredBoard) { b.Steps[1].Status = 9 },
		"the unknown status -1":     func(b *boardv1.StoredBoard) { b.Steps[1].Status = -1 },
		"two steps a":               func(b *boardv1.StoredBoard) { b.Steps[1] = step("a") },
		"depends on z":              func(b *boardv1.StoredBoard) { b.Steps[1] = step("b", "z") },
		"step 9 was deleted":        func(b *boardv1.StoredBoard) { b.DeletedSteps = []int32{9} },
		"step 0 was deleted":        func(b *boardv1.StoredBoard) { b.DeletedSteps = []int32{1, 0} },
		"step 5, which a run": func(b *boardv1.StoredBoard) {
			b.StepsAtClaim = []*boardv1.StepAtClaim{
				{Index: 5},
			}
		},
		"step -1, which a run": func(b *boardv1.StoredBoard) {
			b.StepsAtClaim = []*boardv1.StepAtClaim{
				{Index: -1},
			}
		},
		`run "" has no record`: func(b *boardv1.StoredBoard) { b.Runs = []*boardv1.RunInProgress{{}} },
		"is not in progress": func(b *boardv1.StoredBoard) {
			b.Runs = []*boardv1.RunInProgress{{Run: run(func(r *boardv1.WorkerRun) { r.Status = 0 })}}
		},
		"run run_0 was read": func(b *boardv1.StoredBoard) {
			b.Runs = []*boardv1.RunInProgress{{Run: run(func(r *boardv1.WorkerRun) { r.RunId = "run_0" })}}
		},
		`dispatch "dsp_9"`: func(b *boardv1.StoredBoard) {
			b.Runs = []*boardv1.RunInProgress{
				{Standing: true, Run: run(func(r *boardv1.WorkerRun) { r.DispatchId = "dsp_9" })},
			}
		},
		`step "z" of run`: func(b *boardv1.StoredBoard) {
			b.Runs = []*boardv1.RunInProgress{{Run: run(func(r *boardv1.WorkerRun) { r.ClaimedStepId = "z" })}}
		},
		`two active boards "same"`: func(b *boardv1.StoredBoard) { b.BoardId = "same" },
	} {
		t.Run(says, func(t *testing.T) {
			read := func(st *State, wal string, change func(*boardv1.StoredBoard)) error {
				page := &boardv1.StoredBoard{
					SessionId: "keeper", WalName: wal, BoardId: wal, Status: BoardPending,
					LinePositions: []byte{1}, Steps: []*boardv1.Step{step("a"), step("b", "a")},
				}
				change(page)
				return st.AddPage(BoardKey{"acme", "keeper", wal}.owner(),
					&boardv1.BoardPage{Content: &boardv1.BoardPage_Board{Board: page}})
			}
			st := fresh()
			require.NoError(t, read(st, "zero", func(b *boardv1.StoredBoard) {
				b.BoardId, b.Runs = "same", []*boardv1.RunInProgress{
					{Run: run(func(r *boardv1.WorkerRun) { r.RunId = "run_0" })},
				}
			}))
			require.ErrorContains(t, read(st, "zero", func(*boardv1.StoredBoard) {}), "was read before")
			require.ErrorContains(t, read(st, "one", change), says)
		})
	}
	ended := func(runs ...*boardv1.EndedRun) *boardv1.BoardPage {
		return &boardv1.BoardPage{Content: &boardv1.BoardPage_EndedRuns{EndedRuns: &boardv1.EndedRuns{Runs: runs}}}
	}
	over := &boardv1.EndedRun{WalName: "one", Run: &boardv1.WorkerRun{
		RunId: "run_1", Status: boardv1.RunStatus_RUN_STATUS_LOST,
	}}
	for says, c := range map[string]struct {
		owner snapshot.Owner
		page  proto.Message
	}{
		"it has 0 ended runs":  {endedOwner(0), ended()},
		"it has 65 ended runs": {endedOwner(0), ended(make([]*boardv1.EndedRun, 65)...)},
		"it has 1 ended runs":  {sessionOwner(keeper), ended(over)},
		"has no record":        {endedOwner(0), ended(nil)},
		"was read before":      {endedOwner(0), ended(over, over)},
		"run run_1 has not ended": {
			endedOwner(0), ended(&boardv1.EndedRun{WalName: "one", Run: runOf("run_1").GetRun()}),
		},
		"nothing that is known":    {endedOwner(0), &boardv1.BoardPage{}},
		"orchestrator was deleted": {endedOwner(0), &boardv1.BoardPage{Content: &boardv1.BoardPage_Session{}}},
		"*boardv1.Board":           {endedOwner(0), &boardv1.Board{}},
	} {
		require.ErrorContains(t, fresh().AddPage(c.owner, c.page), says)
	}
	for _, id := range []string{
		"", "ended/", "ended/01", "ended/1", "board/", "board/keeper", "board/keeper/one",
		"board/%/%", "session/keeper",
	} {
		require.Nil(t, fresh().Page(snapshot.Owner{Namespace: "acme", ID: id}), id)
		require.Nil(t, fresh().Page(snapshot.Owner{ID: id}), id)
	}
}

// TestPagesOfRandomHistories applies random events, nearly all of which can follow.
func TestPagesOfRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := &journalOf{t: t, st: journaltest.Checked(fresh, 5, nil)}
		h := &randomEvents{journalOf: j, rt: t}
		j.add("b0", "", created("b0", input("s0"), input("s1", "s0"), input("s2", "s0", "s1")))
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			h.step()
		}
		require.NoError(t, j.st.Check())
		j.add("", "", &boardv1.OwnerDeleted{AgentId: "keeper"})
		_, err := j.st.EraseDeleted()
		require.NoError(t, err)
	})
	require.Equal(t, content{}, *closed, "it is shared by all boards that have ended")
}

// randomEvents draws events.
type randomEvents struct {
	*journalOf
	rt    *rapid.T
	wals  int
	runs  int
	added int
}

func draw[T any](h *randomEvents, from []T) (v T, ok bool) {
	if len(from) == 0 {
		return v, false
	}
	return rapid.SampledFrom(from).Draw(h.rt, "one of"), true
}

// step adds an event about one of three boards, if one of the kind that is drawn can follow.
func (h *randomEvents) step() {
	id := rapid.SampledFrom([]string{"b0", "b1", "b2"}).Draw(h.rt, "board")
	b := h.st.Paged.ActiveBoard(keeper, id)
	if b == nil {
		h.wals++
		h.add(id, "", created(fmt.Sprint("wal", h.wals), input("s0"), input("s1", "s0"), input("s2")))
		return
	}
	kind := rapid.IntRange(0, 24).Draw(h.rt, "kind")
	if b.IsDamaged() && rapid.IntRange(0, 9).Draw(h.rt, "supersede") == 0 {
		h.wals++
		h.add(id, "", created(fmt.Sprint("wal", h.wals), input("s0")))
		return
	}
	switch {
	case kind < 14:
		h.stepLine(id, b, kind)
	case kind < 20:
		h.aboutRuns(id, b, kind)
	default:
		h.aboutBoard(id, b, kind)
	}
}

// steps returns the ids of the steps that are in one of the statuses.
func steps(b *Board, in ...StepStatus) (ids []string) {
	for _, s := range b.Order {
		if s != nil && slices.Contains(in, s.Record.GetStatus()) {
			ids = append(ids, s.ID())
		}
	}
	return ids
}

func (h *randomEvents) stepLine(id string, b *Board, kind int) {
	line := func(payload proto.Message, from ...StepStatus) {
		if step, ok := draw(h, steps(b, from...)); ok {
			h.add(id, step, payload)
		}
	}
	switch kind {
	case 0, 1, 2:
		for _, step := range steps(b, StepPending) {
			if b.Steps[step].OpenDependencies == 0 {
				h.add(id, step, &boardv1.TaskStepReady{})
			}
		}
	case 3, 4, 5:
		h.runs++
		claim := claimBy(fmt.Sprint("run_", h.runs), "")
		if run, ok := draw(h, slices.Sorted(maps.Keys(b.Runs))); ok && rapid.Bool().Draw(h.rt, "by a run") {
			if b.Runs[run].HasClaimed() {
				return
			}
			claim = claimBy(run, "")
		} else if d, ok := draw(h, b.Dispatches); ok {
			claim.DispatchId = d.Record.GetDispatchId()
		}
		line(claim, StepReady)
	case 6:
		line(&boardv1.TaskStepStarted{}, StepClaimed)
	case 7:
		line(&boardv1.TaskStepUpdated{ArtifactIds: []string{"art"}}, StepRunning)
	case 8, 9:
		line(&boardv1.TaskStepCompleted{}, StepReady, StepClaimed, StepRunning)
	case 10:
		line(&boardv1.TaskStepBlocked{Reason: "why"}, StepReady, StepClaimed, StepRunning)
	case 11:
		line(&boardv1.TaskStepCancelled{}, StepPending, StepClaimed, StepRunning)
	case 12:
		line(&boardv1.TaskStepReopened{}, StepBlocked, StepFailed)
	case 13:
		line(&boardv1.TaskStepLeaseExpired{}, StepClaimed, StepRunning)
	}
}

func (h *randomEvents) aboutRuns(id string, b *Board, kind int) {
	h.runs++
	run, running := draw(h, slices.Sorted(maps.Keys(b.Runs)))
	switch kind {
	case 14:
		h.add(id, "", runOf(fmt.Sprint("run_", h.runs), rapid.SampledFrom([][]string{nil, {"s0", "s7"}}).
			Draw(h.rt, "allowed")...))
	case 15:
		if running {
			h.add(id, "", &boardv1.WorkerRunEnded{RunId: run, Status: boardv1.RunStatus_RUN_STATUS_TIMED_OUT})
		}
	case 16:
		if k, ok := draw(h, h.st.Paged.ended); ok {
			h.add(id, "", &boardv1.WorkerRunEnded{
				RunId: k.ID, Status: boardv1.RunStatus_RUN_STATUS_FINISHED,
				WorkerResult: "more",
			})
		}
	case 17:
		if running {
			h.add(id, "", &boardv1.WorkerRunCancelling{RunId: run})
		}
	case 18:
		h.add(id, "", dispatchOf(fmt.Sprint("dsp_", h.runs), rapid.SampledFrom([][]string{nil, {"s1", "s8"}}).
			Draw(h.rt, "allowed")...))
	case 19:
		if d, ok := draw(h, b.Dispatches); ok {
			h.add(id, "", &boardv1.StandingDispatchClosed{DispatchId: d.Record.GetDispatchId()})
		}
	}
}

func (h *randomEvents) aboutBoard(id string, b *Board, kind int) {
	switch kind {
	case 20, 21:
		h.add(id, "", &boardv1.TaskUpdated{Operations: h.patch(b)})
	case 22:
		h.add(id, "", &boardv1.BoardTerminating{Status: BoardCancelled, RunIds: b.HoldingRuns()})
	case 23:
		if rapid.IntRange(0, 2).Draw(h.rt, "end") == 0 {
			h.add(id, "", &boardv1.TaskCancelled{Reason: "enough"})
		}
	case 24:
		if rapid.IntRange(0, 4).Draw(h.rt, "damage") == 0 {
			h.add(id, rapid.SampledFrom([]string{"", "s0", "s1"}).Draw(h.rt, "step"), rapid.SampledFrom([]proto.Message{
				&boardv1.TaskStepReopened{}, claimBy("run_x", ""), &boardv1.TaskRunning{}, &boardv1.OwnerDeleted{
					AgentId: "gone",
				},
				&boardv1.TaskUpdated{Operations: []*boardv1.Operation{
					{Op: OpAddStep, Step: input("s6", "s0")},
					{Op: OpDeleteStep, StepId: "s2"},
					{Op: OpAddDependency, StepId: "s0", DependsOnStepId: "s9"},
				}},
			}).Draw(h.rt, "what"))
		}
	}
}

// patch returns operations that keep the board acyclic: steps depend on those before them.
func (h *randomEvents) patch(b *Board) (ops []*boardv1.Operation) {
	h.added++
	added := fmt.Sprint("s", 2+h.added)
	for _, id := range slices.Sorted(maps.Keys(b.Steps)) {
		s := b.Steps[id]
		switch rapid.IntRange(0, 5).Draw(h.rt, "operation") {
		case 0:
			if len(s.Dependents) == 0 && slices.Contains([]StepStatus{StepPending, StepReady, StepCancelled},
				s.Record.GetStatus()) {
				ops = append(ops, &boardv1.Operation{Op: OpDeleteStep, StepId: id})
				if rapid.Bool().Draw(h.rt, "again") {
					ops = append(ops, &boardv1.Operation{Op: OpAddStep, Step: input(id)})
				}
			}
		case 1:
			pool := rapid.SampledFrom([]string{DefaultPool, "other"}).Draw(h.rt, "pool")
			ops = append(ops, &boardv1.Operation{Op: OpUpdateStep, StepId: id, Fields: &boardv1.StepFields{
				WorkerPoolId: &pool, DependsOnStepIds: &boardv1.StepList{StepIds: h.before(b, s)},
			}})
		}
	}
	if b.Steps[added] == nil && rapid.Bool().Draw(h.rt, "add") {
		ops = append(ops, &boardv1.Operation{Op: OpAddStep, Step: input(added)})
	}
	return ops
}

// before returns some of the steps before a step that no operation deletes.
func (h *randomEvents) before(b *Board, s *Step) (ids []string) {
	for _, o := range b.Order[:s.Index] {
		if o != nil && len(o.Dependents) > 0 && rapid.Bool().Draw(h.rt, "depends") {
			ids = append(ids, o.ID())
		}
	}
	return ids
}
