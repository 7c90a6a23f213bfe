package board

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/wal"
)

// TestB1_ReplayIsTheLiveState runs random histories, refused commands among
// them, and compares what the WAL gives with what lives, and with what a
// restart gives: byte for byte, but for what heartbeats did to leases.
func TestB1_ReplayIsTheLiveState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := openRig(t)
		defer r.down()
		h := &history{rig: r, rt: rt}
		h.begin()
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			h.step()
		}
		live := h.live()
		h.invariants()
		log := r.wal("random-wal")
		replayed, err := wal.Replay(bytes.NewReader(log))
		require.NoError(rt, err)
		require.Zero(rt, replayed.Torn)
		require.Equal(rt, text(live), text(replayed.Board))
		require.Equal(rt, live.GetRevision(), replayed.Lines)
		r.restart()
		require.Equal(rt, text(live), text(h.live()))
		require.Equal(rt, string(log), string(r.wal("random-wal")))
		r.checkPages()
	})
}

// TestB1_AWALCutAnywhere cuts a WAL at every byte: what was whole is there, and
// the rest is said to be torn.
func TestB1_AWALCutAnywhere(t *testing.T) {
	r := newRig(t)
	log := r.sample()
	for cut := range log {
		got, err := wal.Replay(bytes.NewReader(log[:cut]))
		require.NoError(t, err, cut)
		whole := countLines(log[:cut])
		rest := cut - (bytes.LastIndexByte(log[:cut], '\n') + 1)
		if rest > 0 && log[cut] == '\n' { // only its end is missing
			whole, rest = whole+1, 0
		}
		require.EqualValues(t, whole, got.Lines, cut)
		require.Equal(t, rest, got.Torn, cut)
		require.Equal(t, whole > 0, got.Board != nil)
		require.EqualValues(t, whole, got.Board.GetRevision())
	}
}

// TestB1_AChangedByteIsFound changes each byte of a WAL in turn.
func TestB1_AChangedByteIsFound(t *testing.T) {
	r := newRig(t)
	log := r.sample()
	for at := range log {
		bad := slices.Clone(log)
		bad[at] ^= 0x01
		line := countLines(log[:at]) + 1
		got, err := wal.Replay(bytes.NewReader(bad))
		if err == nil {
			// A last newline that is something else leaves a torn line.
			require.Equal(t, len(log)-1, at)
			require.NotZero(t, got.Torn)
			continue
		}
		require.ErrorIs(t, err, fault.Storage, at)
		require.Equal(t, fmt.Sprint(line), fault.From(err).Metadata()["line"], "byte %d: %v", at, err)
		require.EqualValues(t, line-1, got.Lines)
	}
}

// TestB1_AMissingLineIsNamed leaves each line out, doubles it, and swaps it with the next.
func TestB1_AMissingLineIsNamed(t *testing.T) {
	r := newRig(t)
	lines := bytes.SplitAfter(r.sample(), []byte("\n"))
	lines = lines[:len(lines)-1]
	for i := range lines {
		if i < len(lines)-1 {
			_, err := wal.Replay(bytes.NewReader(bytes.Join(slices.Delete(slices.Clone(lines), i, i+1), nil)))
			require.ErrorIs(t, err, fault.Storage)
			if i > 0 {
				require.ErrorContains(t, err, fmt.Sprintf("line %d, at byte", i+1))
				require.ErrorContains(t, err, fmt.Sprintf("%d to %d are missing", i+1, i+1))
			}
		}
		_, err := wal.Replay(bytes.NewReader(bytes.Join(slices.Insert(slices.Clone(lines), i, lines[i]), nil)))
		require.ErrorIs(t, err, fault.Storage)
		require.Equal(t, fmt.Sprint(i+2), fault.From(err).Metadata()["line"])
	}
}

// TestB1_ALineOfAnotherHistoryIsFound puts a line in that is right by itself.
func TestB1_ALineOfAnotherHistoryIsFound(t *testing.T) {
	r := newRig(t)
	a := bytes.SplitAfter(r.sample(), []byte("\n"))
	r.create("other", in("a"), in("b", "a"))
	b := bytes.SplitAfter(r.wal("other-wal"), []byte("\n"))
	a[1] = b[1]
	_, err := wal.Replay(bytes.NewReader(bytes.Join(a, nil)))
	require.ErrorIs(t, err, fault.Storage)
	require.Equal(t, "2", fault.From(err).Metadata()["line"])
}

// sample returns the WAL of a small board that saw something.
func (r *rig) sample() []byte {
	r.t.Helper()
	r.create("sample", in("a"), in("b", "a"), optional(in("c")))
	runID := r.held("sample", "a")
	require.NoError(r.t, r.report("sample", "w-a", runID, "a", model.StepRunning))
	require.NoError(r.t, r.report("sample", "w-a", runID, "a", model.StepCompleted))
	require.NoError(r.t, r.update("sample", &boardv1.Operation{Op: model.OpAddStep, Step: in("d", "b")},
		&boardv1.Operation{Op: model.OpCancelStep, StepId: "c", Reason: "no \"need\"\n"}))
	require.NoError(r.t, r.say("sample", "b", model.StepFailed))
	return r.wal("sample-wal")
}

func text(b *boardv1.Board) string {
	c := proto.CloneOf(b)
	for _, s := range c.GetSteps() {
		s.LeaseExpiresAt = nil
	}
	// Not in the WAL: that the board is about to end.
	c.Terminating, c.Diagnostics = false, nil
	out, err := prototext.MarshalOptions{Multiline: true}.Marshal(c)
	if err != nil {
		panic(err)
	}
	return string(bytes.ReplaceAll(out, []byte("  "), []byte(" ")))
}

type history struct {
	*rig
	rt   *rapid.T
	runs []string // of workers w0, w1 ...
}

func (h *history) begin() {
	n := rapid.IntRange(1, 8).Draw(h.rt, "size")
	var steps []*boardv1.StepInput
	for i, id := range ids(n) {
		s := in(id)
		for _, d := range ids(i) {
			if rapid.IntRange(0, 2).Draw(h.rt, "edge") == 0 {
				s.DependsOnStepIds = append(s.DependsOnStepIds, d)
			}
		}
		if rapid.IntRange(0, 3).Draw(h.rt, "optional") == 0 {
			optional(s)
		}
		steps = append(steps, s)
	}
	h.create("random", steps...)
}

func (h *history) live() *boardv1.Board { return h.get("random") }

func (h *history) id() string { return rapid.SampledFrom(ids(10)).Draw(h.rt, "id") }

// step does one random thing. A refusal is as good as any other end, if it is
// one that a caller can do something about.
func (h *history) step() {
	rt := h.rt
	h.clk.Advance(time.Duration(rapid.SampledFrom([]int{0, 1, 30, 299, 301}).Draw(rt, "pause")) * time.Second)
	var err error
	switch rapid.IntRange(0, 11).Draw(rt, "what") {
	case 0, 1:
		b, _ := h.service.GetBoard(h.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: "random"})
		if s := b.GetBoard().GetStatus(); s == model.BoardPending || s == model.BoardRunning {
			h.runs = append(h.runs, h.run("random", fmt.Sprint("w", len(h.runs))))
		}
	case 2, 3, 4:
		if len(h.runs) > 0 {
			i := rapid.IntRange(0, len(h.runs)-1).Draw(rt, "run")
			step := h.id()
			if rapid.Bool().Draw(rt, "any") {
				step = ""
			}
			err = h.claim("random", fmt.Sprint("w", i), h.runs[i], step)
		}
	case 5, 6, 7:
		if len(h.runs) > 0 {
			i := rapid.IntRange(0, len(h.runs)-1).Draw(rt, "run")
			step := h.id()
			for _, s := range h.live().GetSteps() {
				if s.GetClaimedByRunId() == h.runs[i] {
					step = s.GetStepId()
				}
			}
			err = h.report("random", fmt.Sprint("w", i), h.runs[i], step,
				model.StepStatus(rapid.Int32Range(1, 8).Draw(rt, "to")))
		}
	case 8:
		err = h.say("random", h.id(), model.StepStatus(rapid.Int32Range(1, 8).Draw(rt, "to")))
	case 9, 10:
		var ops []*boardv1.Operation
		for range rapid.IntRange(1, 4).Draw(rt, "ops") {
			ops = append(ops, h.operation())
		}
		err = h.update("random", ops...)
	default:
		if len(h.runs) > 0 && rapid.Bool().Draw(rt, "end a run") {
			i := rapid.IntRange(0, len(h.runs)-1).Draw(rt, "run")
			_, err = h.service.FinishWorkerRun(h.as(fmt.Sprint("w", i), h.runs[i]), &boardv1.FinishWorkerRunRequest{
				SessionId: owner, BoardId: "random", WorkerResult: "bye",
			})
		} else if rapid.IntRange(0, 5).Draw(rt, "end") == 0 {
			_, err = h.service.CompleteBoard(h.owner(), &boardv1.CompleteBoardRequest{
				SessionId: owner, BoardId: "random",
			})
		}
	}
	if err != nil {
		var f *fault.Error
		require.ErrorAs(rt, err, &f)
		require.NotEqual(rt, fault.InternalError, f.Reason(), err)
		require.NotEqual(rt, fault.Storage, f.Reason(), err)
	}
}

func (h *history) operation() *boardv1.Operation {
	op := &boardv1.Operation{Op: boardv1.OperationKind(rapid.Int32Range(1, 10).Draw(h.rt, "op"))}
	switch op.GetOp() {
	case model.OpUpdateTask:
		title := "T"
		op.Task = &boardv1.UpdateTask{Title: &title}
	case model.OpAddStep:
		op.Step = in(h.id(), h.deps()...)
	case model.OpUpdateStep:
		op.StepId, op.Fields = h.id(), &boardv1.StepFields{DependsOnStepIds: &boardv1.StepList{StepIds: h.deps()}}
		pool := rapid.SampledFrom([]string{model.DefaultPool, "other"}).Draw(h.rt, "pool")
		op.Fields.WorkerPoolId = &pool
	case model.OpAddDependency, model.OpRemoveDependency:
		op.StepId, op.DependsOnStepId = h.id(), h.id()
	case model.OpBlockBoard:
		op.Reason = "wait"
	case model.OpReopenBoard:
	default:
		op.StepId = h.id()
	}
	return op
}

func (h *history) deps() []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(ids(10)), 0, 3, rapid.ID[string]).Draw(h.rt, "deps")
}

// invariants hold for every live board.
func (h *history) invariants() {
	st, _, err := journal.View(context.Background(), h.service.engine.All()[0],
		func(s *model.State) (*model.State, error) { return s, nil })
	require.NoError(h.rt, err)
	b := st.ActiveBoard(model.Key{Namespace: "acme", ID: owner}, "random")
	if b == nil {
		return
	}
	require.NoError(h.rt, b.Damaged)
	var count [9]int
	open, ready, bytesOfIDs := 0, 0, 0
	for _, s := range b.Steps {
		bytesOfIDs += len(s.ID())
		count[s.Record.GetStatus()]++
		open += model.RequiredOpen(s.Record)
		waiting := 0
		for _, d := range s.Record.GetDependsOnStepIds() {
			require.NotNil(h.rt, b.Steps[d])
			require.True(h.rt, slices.Contains(b.Steps[d].Dependents, s))
			if b.Steps[d].Record.GetStatus() != model.StepCompleted {
				waiting++
			}
		}
		require.Equal(h.rt, waiting, s.OpenDependencies, s.ID())
		isReady := s.Record.GetStatus() == model.StepReady
		require.Equal(h.rt, isReady, b.Ready[s.Record.GetWorkerPoolId()] != nil &&
			b.Ready[s.Record.GetWorkerPoolId()].Has(s.Index))
		if isReady {
			ready++
			require.Zero(h.rt, waiting, "ready and waiting")
		}
		require.False(h.rt, s.Record.GetStatus() == model.StepPending && waiting == 0,
			"pending and waiting for nothing")
		require.Equal(h.rt, model.Held(s.Record.GetStatus()), s.Record.GetClaimedByRunId() != "")
	}
	require.Equal(h.rt, count, b.Count)
	require.Equal(h.rt, open, b.RequiredOpen)
	require.Equal(h.rt, bytesOfIDs, b.IDBytes)
	inSets := 0
	for _, set := range b.Ready {
		inSets += set.Len()
	}
	require.Equal(h.rt, ready, inSets)
	if b.Status == model.BoardPending {
		require.Zero(h.rt, b.Count[model.StepReady]+b.Count[model.StepClaimed]+b.Count[model.StepRunning])
	}
}
