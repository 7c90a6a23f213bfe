package board

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/patch"
	"quartet/services/board/wal"
)

func request(steps ...*boardv1.StepInput) *boardv1.CreateBoardRequest {
	return &boardv1.CreateBoardRequest{SessionId: owner, BoardId: "one", WalName: "wal", Title: "t", Steps: steps}
}

func TestB3_WhatABoardMayNotBe(t *testing.T) {
	r := newRig(t)
	long := func(n int) []*boardv1.StepInput { // a chain that is closed at its end
		var out []*boardv1.StepInput
		for i := range n {
			out = append(out, in(fmt.Sprint("s", i), fmt.Sprint("s", (i+1)%n)))
		}
		return out
	}
	named := func(board, wal string) *boardv1.CreateBoardRequest {
		req := request(in("a"))
		req.BoardId, req.WalName = board, wal
		return req
	}
	for name, c := range map[string]struct {
		req    *boardv1.CreateBoardRequest
		reason fault.Reason
	}{
		"no steps":         {request(), fault.InvalidArgument},
		"self":             {request(in("a", "a")), fault.DependencyCycle},
		"circle of two":    {request(in("a", "b"), in("b", "a")), fault.DependencyCycle},
		"circle behind":    {request(in("x", "a"), in("a", "b"), in("b", "c"), in("c", "a")), fault.DependencyCycle},
		"a long circle":    {request(long(2000)...), fault.DependencyCycle},
		"unknown":          {request(in("a", "b")), fault.UnknownDependency},
		"twice":            {request(in("a"), in("a")), fault.DuplicateStep},
		"dependency twice": {request(in("b"), in("a", "b", "b")), fault.InvalidArgument},
		"no title":         {request(&boardv1.StepInput{StepId: "a"}), fault.InvalidArgument},
		"path in step id":  {request(in("a/b")), fault.InvalidArgument},
		"hidden wal":       {named("one", ".wal"), fault.InvalidArgument},
		"wal upwards":      {named("one", ".."), fault.InvalidArgument},
		"absolute wal":     {named("one", "/etc/passwd"), fault.InvalidArgument},
		"wal extension":    {named("one", "a.wal.jsonl"), fault.InvalidArgument},
		"no wal":           {named("one", ""), fault.InvalidArgument},
		"long wal":         {named("one", strings.Repeat("a", 129)), fault.LimitExceeded},
		"no board id":      {named("", "wal"), fault.InvalidArgument},
		"long board id":    {named(strings.Repeat("a", 129), "wal"), fault.LimitExceeded},
	} {
		must.Refuse(r.service.CreateBoard(r.owner(), c.req))(t, c.reason, name)
	}
	require.Empty(t, r.events())
	must.Value(r.service.CreateBoard(r.owner(), named(strings.Repeat("a", 128), strings.Repeat("b", 128))))(t)
	must.Refuse(r.service.CreateBoard(r.owner(), named(strings.Repeat("a", 128), "other")))(t, fault.AlreadyExists)
	must.Refuse(r.service.CreateBoard(r.owner(), named("other", strings.Repeat("b", 128))))(t, fault.PathConflict)
}

// TestX8_TenThousandSteps: at the limit a board can be made, finished and
// ended; one step more is refused.
func TestX8_TenThousandSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	steps := []*boardv1.StepInput{in("root")}
	for i := range patch.MaxSteps - 1 {
		steps = append(steps, in(fmt.Sprintf("step-%05d", i), "root"))
	}
	must.Refuse(r.service.CreateBoard(r.owner(), request(append(steps, in("more"))...)))(t, fault.LimitExceeded)
	must.Value(r.service.CreateBoard(r.owner(), request(steps...)))(t)
	require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpAddStep, Step: in("more")}), fault.LimitExceeded)
	runID := r.held("one", "root") // one that makes all others ready in one frame
	require.NoError(t, r.report("one", "w-root", runID, "root", model.StepCompleted))
	require.EqualValues(t, patch.MaxSteps-1, r.get("one").GetCounts().GetReady())
	must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{
		SessionId: owner, BoardId: "one", RequestId: strings.Repeat("r", 128),
	}))(t)
	require.EqualValues(t, patch.MaxSteps-1, r.get("one").GetCounts().GetCancelled())
	longest := func(i int) string { return fmt.Sprintf("%0128d", i) }
	var wide []*boardv1.StepInput
	for i := range patch.MaxSteps {
		wide = append(wide, in(longest(i)))
	}
	req := request(wide...)
	req.BoardId, req.WalName = strings.Repeat("b", 128), "wide"
	must.Refuse(r.service.CreateBoard(r.owner(), req))(t, fault.LimitExceeded) // and says so before anything is written
}

func TestB4_APatchIsAllOrNothing(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b", "a"), in("c", "b"))
	before, n := r.get("one"), len(r.events())
	title := "new"
	fields := &boardv1.StepFields{Title: &title}
	for name, c := range map[string]struct {
		reason fault.Reason
		ops    []*boardv1.Operation
	}{
		"unknown step": {
			fault.NotFound, []*boardv1.Operation{{Op: model.OpUpdateStep, StepId: "z", Fields: fields}},
		},
		"circle by edge": {fault.DependencyCycle, []*boardv1.Operation{
			{Op: model.OpAddDependency, StepId: "a", DependsOnStepId: "c"},
		}},
		"circle by new step": {fault.DependencyCycle, []*boardv1.Operation{
			{Op: model.OpAddStep, Step: in("d", "c")},
			{Op: model.OpAddDependency, StepId: "a", DependsOnStepId: "d"},
		}},
		"self": {fault.DependencyCycle, []*boardv1.Operation{
			{Op: model.OpAddDependency, StepId: "a", DependsOnStepId: "a"},
		}},
		"unknown dependency": {fault.UnknownDependency, []*boardv1.Operation{
			{Op: model.OpAddStep, Step: in("d", "z")},
		}},
		"twice":      {fault.DuplicateStep, []*boardv1.Operation{{Op: model.OpAddStep, Step: in("a")}}},
		"dependents": {fault.StepHasDependents, []*boardv1.Operation{{Op: model.OpDeleteStep, StepId: "b"}}},
		"dependents by patch": {fault.StepHasDependents, []*boardv1.Operation{
			{Op: model.OpAddStep, Step: in("d", "c")}, {Op: model.OpDeleteStep, StepId: "c"},
		}},
		"not blocked": {fault.StepState, []*boardv1.Operation{{Op: model.OpReopenStep, StepId: "a"}}},
		"twice the edge": {fault.InvalidArgument, []*boardv1.Operation{
			{Op: model.OpAddDependency, StepId: "b", DependsOnStepId: "a"},
		}},
		"no such edge": {fault.UnknownDependency, []*boardv1.Operation{
			{Op: model.OpRemoveDependency, StepId: "b", DependsOnStepId: "c"},
		}},
		"nothing": {fault.InvalidArgument, nil},
		"no kind": {fault.InvalidArgument, []*boardv1.Operation{{StepId: "a"}}},
		"foreign field": {fault.InvalidArgument, []*boardv1.Operation{
			{Op: model.OpCancelStep, StepId: "a", Fields: fields},
		}},
		"missing field": {fault.InvalidArgument, []*boardv1.Operation{{Op: model.OpUpdateStep, StepId: "a"}}},
	} {
		// In front of what is refused stands something that is right.
		ops := c.ops
		if name != "nothing" {
			ops = append([]*boardv1.Operation{{Op: model.OpUpdateStep, StepId: "a", Fields: fields}}, ops...)
		}
		require.ErrorIs(t, r.update("one", ops...), c.reason, name)
	}
	require.Equal(t, text(before), text(r.get("one")))
	require.Len(t, r.events(), n)
	require.NoError(t, r.update("one",
		// validated as a whole
		&boardv1.Operation{Op: model.OpAddStep, Step: in("early", "late")}, &boardv1.Operation{
			Op:   model.OpAddStep,
			Step: in("late"),
		},
		&boardv1.Operation{Op: model.OpRemoveDependency, StepId: "c", DependsOnStepId: "b"},
		&boardv1.Operation{Op: model.OpDeleteStep, StepId: "b"},
		&boardv1.Operation{Op: model.OpCancelStep, StepId: "a", Reason: "no need"},
		&boardv1.Operation{Op: model.OpUpdateStep, StepId: "a", Fields: fields}))
	require.Equal(t, []string{"task_updated", "task_step_cancelled", "task_step_ready", "task_step_ready"},
		planetest.Types(r.events()[n:]))
	require.Equal(t, "new", r.step("one", "a").GetTitle())
	require.Equal(t, model.StepCancelled, r.step("one", "a").GetStatus())
	require.Equal(t, model.StepReady, r.step("one", "c").GetStatus())
	wrong := int64(1)
	must.Refuse(r.service.UpdateBoard(r.owner(), &boardv1.UpdateBoardRequest{
		SessionId: owner, BoardId: "one", ExpectedRevision: &wrong, Operations: []*boardv1.Operation{
			{Op: model.OpBlockBoard},
		},
	}))(t, fault.RevisionConflict)
}

func TestB8_WhatIsDoneStays(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"), in("b", "a"), in("c"), in("d"))
	require.NoError(t, r.say("one", "a", model.StepCompleted))
	runID := r.held("one", "c")
	title, no, pool := "T", false, "p"
	for _, f := range []*boardv1.StepFields{
		{Required: &no},
		{WorkerPoolId: &pool},
		{DependsOnStepIds: &boardv1.StepList{}},
	} {
		require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpUpdateStep, StepId: "a", Fields: f}),
			fault.StepState)
	}
	for _, id := range []string{"a", "c"} {
		require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpDeleteStep, StepId: id}), fault.StepState)
		require.ErrorIs(t, r.update("one", &boardv1.Operation{Op: model.OpCancelStep, StepId: id}), fault.StepState)
	}
	require.NoError(t,
		r.update("one", &boardv1.Operation{Op: model.OpUpdateStep, StepId: "a", Fields: &boardv1.StepFields{
			Title: &title,
		}}))
	require.Equal(t, model.StepCompleted, r.step("one", "a").GetStatus())
	// A held step may be changed; its worker goes on and the WAL says so.
	require.NoError(t,
		r.update("one", &boardv1.Operation{Op: model.OpAddDependency, StepId: "c", DependsOnStepId: "d"}))
	events := r.events()
	updated, ok := events[len(events)-1].Payload.(*boardv1.TaskUpdated)
	require.True(t, ok)
	require.Equal(t, []string{"c"}, updated.GetUpdatedAfterDispatchStepIds())
	require.Equal(t, model.StepClaimed, r.step("one", "c").GetStatus())
	got := must.Value(r.service.InspectBoard(r.owner(), &boardv1.InspectBoardRequest{
		SessionId: owner, BoardId: "one", Timeline: 3,
	}))(t)
	require.Len(t, got.GetTimeline(), 3)
	require.Empty(t, got.GetDispatched()[0].GetAtDispatch().GetDependsOnStepIds())
	require.Equal(t, []string{"d"}, got.GetDispatched()[0].GetNow().GetDependsOnStepIds())
	require.True(t, got.GetDispatched()[0].GetUpdatedAfterDispatch())
	require.NoError(t, r.report("one", "w-c", runID, "c", model.StepFailed))
	require.NoError(t, r.update("one", &boardv1.Operation{Op: model.OpReopenStep, StepId: "c"}))
	require.Equal(t, model.StepPending, r.step("one", "c").GetStatus()) // it waits for d now
}

func TestX15_WhoMayDoWhat(t *testing.T) {
	r := newRig(t)
	r.create("one", in("a"))
	runID := r.run("one", "w1")
	other := planetest.AsAgent(within(t), "other")
	worker := r.as("w1", runID)
	bare := planetest.As(within(t), rpc.RoleWorker)
	block := &boardv1.UpdateBoardRequest{SessionId: owner, BoardId: "one", Operations: []*boardv1.Operation{
		{Op: model.OpBlockBoard},
	}}
	change := &boardv1.UpdateBoardRequest{SessionId: owner, BoardId: "one", Operations: []*boardv1.Operation{
		{Op: model.OpCancelStep, StepId: "a"},
	}}
	must.Refuse(r.service.CreateBoard(other, request(in("a"))))(t, fault.PermissionDenied)
	must.Refuse(r.service.CreateBoard(worker, request(in("a"))))(t, fault.ToolNotAvailable)
	must.Refuse(r.service.CreateBoard(r.operator(), request(in("a"))))(t, fault.ToolNotAvailable)
	must.Refuse(r.service.UpdateBoard(worker, change))(t, fault.PermissionDenied)
	must.Refuse(r.service.UpdateBoard(r.operator(), change))(t, fault.PermissionDenied)
	_, err := r.service.GetBoard(other, &boardv1.GetBoardRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.PermissionDenied)
	_, err = r.service.GetBoard(bare, &boardv1.GetBoardRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.ToolNotAvailable)
	_, err = r.service.ClaimStep(r.owner(), &boardv1.ClaimStepRequest{SessionId: owner, BoardId: "one", StepId: "a"})
	require.ErrorIs(t, err, fault.ToolNotAvailable)
	_, err = r.service.CompleteBoard(worker, &boardv1.CompleteBoardRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.PermissionDenied)
	must.Value(r.service.GetBoard(worker, &boardv1.GetBoardRequest{SessionId: owner, BoardId: "one"}))(t)
	must.Value(r.service.UpdateBoard(r.operator(), block))(t)
	must.Value(r.service.CancelBoard(r.operator(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: "one"}))(t)
	elsewhere := rpc.WithActor(within(t), rpc.Actor{Namespace: "zeta", Principal: "admin", Role: rpc.RoleAdmin})
	_, err = r.service.GetBoard(elsewhere, &boardv1.GetBoardRequest{SessionId: owner, BoardId: "one"})
	require.ErrorIs(t, err, fault.NotFound)
}

func TestS2_062_ListingBoards(t *testing.T) {
	r := newRig(t)
	for i := range 60 {
		id := fmt.Sprintf("b%02d", i)
		r.create(id, in("a"))
		if i >= 2 {
			must.Value(r.service.CancelBoard(r.owner(), &boardv1.CancelBoardRequest{SessionId: owner, BoardId: id}))(t)
		}
	}
	r.restart()
	list := func(req *boardv1.ListBoardsRequest) *boardv1.ListBoardsResponse {
		req.SessionId = owner
		return must.Value(r.service.ListBoards(r.owner(), req))(t)
	}
	got := list(&boardv1.ListBoardsRequest{})
	require.Len(t, got.GetBoards(), 2)
	require.False(t, got.GetTruncated())
	got = list(&boardv1.ListBoardsRequest{IncludeTerminal: true})
	require.Len(t, got.GetBoards(), 50)
	require.True(t, got.GetTruncated())
	require.EqualValues(t, 60, got.GetTotal())
	require.Equal(t, "b59", got.GetBoards()[2].GetBoardId()) // newest first
	got = list(&boardv1.ListBoardsRequest{Statuses: []model.BoardStatus{model.BoardCancelled}, Limit: 3, Offset: 56})
	require.Len(t, got.GetBoards(), 2)
	require.Equal(t, "b02", got.GetBoards()[1].GetBoardId())
	wals := must.Value(r.service.ListWals(r.owner(), &boardv1.ListWalsRequest{SessionId: owner, PageSize: 59}))(t)
	wals = must.Value(r.service.ListWals(r.owner(), &boardv1.ListWalsRequest{
		SessionId: owner, PageToken: wals.GetNextPageToken(),
	}))(t)
	require.Len(t, wals.GetWals(), 1)
}

// TestB2_ADamagedLineTakesOneBoard writes a line that cannot follow.
func TestB2_ADamagedLineTakesOneBoard(t *testing.T) {
	r := newRig(t)
	r.create("bad", in("a"))
	r.create("good", in("a"))
	b := model.NewBoard(model.BoardKey{Namespace: "acme", Session: owner, WAL: "bad-wal"}, "bad")
	_, err := r.service.do(r.owner(), changeOf("bad", b.NewEvent("nowhere", &boardv1.TaskStepReady{})))
	require.NoError(t, err)
	for range 2 {
		_, err = r.service.GetBoard(r.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: "bad"})
		require.ErrorIs(t, err, fault.Storage)
		require.ErrorContains(t, err, "line 4")
		require.ErrorIs(t, r.say("bad", "a", model.StepCompleted), fault.Storage)
		r.restart()
	}
	require.NoError(t, r.say("good", "a", model.StepCompleted))
	must.Refuse(wal.Replay(strings.NewReader(string(r.wal("bad-wal")))))(t, fault.Storage)
}

func TestB14_ASummaryWithinItsBudget(t *testing.T) {
	r := newRig(t)
	var steps []*boardv1.StepInput
	for i := range 400 {
		steps = append(steps, in(fmt.Sprintf("s%03d", i)))
	}
	r.create("one", steps...)
	for i := range 5 {
		require.NoError(t, r.say("one", fmt.Sprintf("s%03d", 390+i), model.StepBlocked))
	}
	runID := r.run("one", "me")
	require.NoError(t, r.claim("one", "me", runID, "s399"))
	r.held("one", "s398")
	for _, budget := range []int32{0, 100, 200, 100_000} {
		got := must.Value(r.service.GetSummary(r.owner(), &boardv1.GetSummaryRequest{
			SessionId: owner, TokenBudget: budget, WorkerId: "me",
		}))(t)
		most := budget
		if budget == 0 {
			most = DefaultTokenBudget
		}
		require.LessOrEqual(t, got.GetTokens(), most)
		require.Equal(t, budget != 100_000, got.GetTruncated())
		require.Contains(t, got.GetText(), "one/s399 [claimed]")
		if budget != 100 {
			for i := range 5 {
				require.Contains(t, got.GetText(), fmt.Sprintf("one/s%03d [blocked]", 390+i))
			}
			require.Contains(t, got.GetText(), "one/s398 [claimed]")
		}
	}
	for _, bad := range []int32{99, 100_001, -1} {
		_, err := r.service.GetSummary(r.owner(), &boardv1.GetSummaryRequest{SessionId: owner, TokenBudget: bad})
		require.ErrorIs(t, err, fault.LimitExceeded)
	}
}

func TestS2_296_TheTemplateWritesNothing(t *testing.T) {
	r := newRig(t)
	got := must.Value(r.service.GetTemplate(r.owner(), &boardv1.GetTemplateRequest{}))(t)
	require.Equal(t, "user", got.GetRole())
	require.Contains(t, got.GetText(), "depends_on_step_ids")
	require.Empty(t, r.events())
}

func TestX2_ARepeatedRequest(t *testing.T) {
	r := newRig(t)
	req := request(in("a"))
	req.RequestId = "r1"
	first := must.Value(r.service.CreateBoard(r.owner(), req))(t)
	r.restart()
	require.Equal(t, first.GetEventIds(), must.Value(r.service.CreateBoard(r.owner(), req))(t).GetEventIds())
	req.Title = "another"
	must.Refuse(r.service.CreateBoard(r.owner(), req))(t, fault.RequestIDReused)
}

// TestX8_TheLargestBoardCanBeFinished: as many steps as are taken with the
// longest ids become ready in one frame, and the board ends.
func TestX8_TheLargestBoardCanBeFinished(t *testing.T) {
	r := newRig(t)
	board := strings.Repeat("b", 128)
	n := 1
	for patch.CheckSize(model.BoardKey{Namespace: "acme", Session: owner, WAL: board}, board, n+1, (n+1)*128) == nil {
		n++
	}
	steps := []*boardv1.StepInput{in(strings.Repeat("r", 128))}
	for i := range n - 1 {
		steps = append(steps, in(fmt.Sprintf("%0128d", i), steps[0].GetStepId()))
	}
	req := request(steps[:n/2]...)
	req.BoardId, req.RequestId = board, strings.Repeat("q", 128)
	must.Value(r.service.CreateBoard(r.owner(), req))(t)
	var ops []*boardv1.Operation
	for _, s := range steps[n/2:] {
		ops = append(ops, &boardv1.Operation{Op: model.OpAddStep, Step: s})
	}
	more := &boardv1.Operation{Op: model.OpAddStep, Step: in(fmt.Sprintf("%0128d", n))}
	require.ErrorIs(t, r.update(board, append(ops, more)...), fault.LimitExceeded)
	require.NoError(t, r.update(board, ops...))
	must.Value(r.service.UpdateStep(r.owner(), &boardv1.UpdateStepRequest{
		SessionId: owner, BoardId: board, StepId: steps[0].GetStepId(), Status: model.StepCompleted,
		RequestId: strings.Repeat("q", 128),
	}))(t)
	must.Value(r.service.FailBoard(r.owner(), &boardv1.FailBoardRequest{
		SessionId: owner, BoardId: board, RequestId: strings.Repeat("q", 128),
	}))(t)
}
