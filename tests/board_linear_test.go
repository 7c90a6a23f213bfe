package tests

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

const linearSteps = 400

const (
	linearWorkers = 32
	linearLease   = time.Second
)

// TestB6_ClaimsAreLinearizable records what 32 workers and some readers see while
// they claim, complete, fall silent and come back, and the server is killed. The
// history must be one that a single step, held by one run at a time, could have:
// no step is held by two, none is given back before its lease is over, no result
// is stored for a run that does not hold it, and nothing done is undone (SPEC B6,
// B8, B9).
func TestB6_ClaimsAreLinearizable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	srv := startServer(t, ctx, filepath.Join(t.TempDir(), "data"), "--step-lease", linearLease.String())
	c := must.Value(client.Dial(srv.GRPC))(t)
	t.Cleanup(func() { _ = c.Close() })
	req := &boardv1.CreateBoardRequest{
		SessionId: "keeper", BoardId: "b", WalName: "b", Title: "b", DefaultWorkerPoolId: "go",
	}
	for i := range linearSteps {
		req.Steps = append(req.Steps, &boardv1.StepInput{StepId: fmt.Sprint("s-", i), Title: "s"})
	}
	require.NoError(t, spawnNamed(ctx, c, "keeper"))
	must.Value(c.Boards.CreateBoard(ctx, req))(t)
	_, err := c.Boards.OpenStandingDispatch(ctx, &boardv1.OpenStandingDispatchRequest{
		SessionId: "keeper", BoardId: "b",
	})
	require.NoError(t, err)

	rng := random(t)
	h := &history{began: time.Now()}
	aside, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range linearWorkers {
		w := &claimer{history: h, id: i, c: c, rng: rand.New(rand.NewPCG(rng.Uint64(), 1))}
		all.Go(func() { w.run(aside) })
	}
	for i := range 4 {
		own := rand.New(rand.NewPCG(rng.Uint64(), 2))
		all.Go(func() { h.read(aside, c, linearWorkers+i, own) })
	}
	const n = 4
	completed := func() int32 {
		return must.Value(client.Again(ctx, func(ctx context.Context) (*boardv1.GetBoardResponse, error) {
			return c.Boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: "keeper", BoardId: "b", OmitSteps: true})
		}))(t).GetBoard().GetCounts().GetCompleted()
	}
	for k := range n {
		most := int32(linearSteps * (k + 1) / (n + 1))
		require.Eventually(t, func() bool { return completed() >= most }, time.Minute, time.Millisecond)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Start(ctx))
	}
	require.Eventually(t, func() bool { return int(completed()) == linearSteps }, 2*time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return h.count("refused") > 0 }, time.Minute, 10*time.Millisecond,
		"nobody was late: the test shows nothing")
	stop()
	all.Wait()
	ops := h.operations()
	for _, part := range stepModel.Partition(ops) {
		result := porcupine.CheckOperationsTimeout(stepModel.ToModel(), part, time.Minute)
		require.Equal(t, porcupine.Ok, result, "of %d operations those of one step: %s", len(ops), describe(part))
	}
	t.Logf("%d operations over %d kills: claims %d, reports refused %d, of unknown outcome %d, reads %d",
		len(ops), n, h.counts["claim"], h.counts["refused"], h.counts["unknown"], h.counts["read"])
}

// A step as its observers see it: held by a run, done by it, or free.
type held struct{ run, done string }

type op struct {
	step, kind, run string // claim, complete, expire, read
}

// outcome of a report or a read.
type outcome struct {
	word string // stored, refused, unknown; free, held, done
	run  string
}

var stepModel = &porcupine.NondeterministicModel{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range all {
			in, _ := o.Input.(op)
			by[in.step] = append(by[in.step], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{held{}} },
	Step: func(state, input, output any) []any {
		s, _ := state.(held)
		in, _ := input.(op)
		out, _ := output.(outcome)
		holds := s.run == in.run && s.done == ""
		next := func(legal bool, to held) []any {
			if !legal {
				return nil
			}
			return []any{to}
		}
		switch {
		case in.kind == "claim":
			return next(s.run == "" && s.done == "", held{run: in.run})
		case in.kind == "expire" && holds:
			return []any{held{}}
		case in.kind == "expire":
			return []any{s}
		case in.kind == "complete" && out.word == "stored":
			return next(holds || s.done == in.run, held{done: in.run}) // said again, it is stored already
		case in.kind == "complete" && out.word == "refused":
			return next(!holds, s)
		case in.kind == "complete" && holds: // it may have been stored or not
			return []any{s, held{done: in.run}}
		case in.kind == "complete":
			return []any{s}
		case out.word == "free":
			return next(s == held{}, s)
		case out.word == "held":
			return next(s.run == out.run && s.done == "", s)
		}
		return next(s.done == out.run, s)
	},
}

// history is what everybody saw.
type history struct {
	began  time.Time
	mu     sync.Mutex
	ops    []porcupine.Operation
	counts map[string]int
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

func (h *history) add(client int, in op, call int64, out outcome, ret int64, count string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts == nil {
		h.counts = map[string]int{}
	}
	h.counts[count]++
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

func (h *history) count(of string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[of]
}

// operations leaves out reads of runs that nobody was told of: the server was
// killed before it could say that they were made. Each operation is a client's of
// its own, since some never end.
func (h *history) operations() []porcupine.Operation {
	claimed := map[string]bool{}
	for _, o := range h.ops {
		if in, _ := o.Input.(op); in.kind == "claim" {
			claimed[in.run] = true
		}
	}
	var ops []porcupine.Operation
	for _, o := range h.ops {
		if out, _ := o.Output.(outcome); out.word == "held" && !claimed[out.run] {
			continue
		}
		o.ClientId = len(ops)
		ops = append(ops, o)
	}
	return ops
}

// describe returns a history for the message of a failure: from when to when, who, what, and the result.
func describe(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range ops {
		until := "never"
		if o.Return != math.MaxInt64 {
			until = time.Duration(o.Return).String()
		}
		fmt.Fprintf(&b, "\n%-14s %-14s %v %v", time.Duration(o.Call), until, o.Input, o.Output)
	}
	return b.String()
}

// read looks at random steps.
func (h *history) read(ctx context.Context, c *client.Client, id int, rng *rand.Rand) {
	for ctx.Err() == nil {
		stepID := fmt.Sprint("s-", rng.IntN(linearSteps))
		call := h.now()
		got, err := c.Boards.QuerySteps(ctx, &boardv1.QueryStepsRequest{
			SessionId: "keeper", BoardId: "b", StepIds: []string{stepID}, IncludeTerminalSteps: true,
		})
		if err != nil || len(got.GetSteps()) != 1 {
			continue
		}
		s, out := got.GetSteps()[0], outcome{word: "free"}
		switch s.GetStatus() {
		case boardv1.StepStatus_STEP_STATUS_CLAIMED, boardv1.StepStatus_STEP_STATUS_RUNNING:
			out = outcome{"held", s.GetClaimedByRunId()}
		case boardv1.StepStatus_STEP_STATUS_COMPLETED:
			out = outcome{"done", s.GetResultSummary()}
		}
		h.add(id, op{step: stepID, kind: "read"}, call, out, h.now(), "read")
	}
}

// claimer is a worker with one step at a time, which is late now and then. The first
// is too late with its step until that has been refused: a kill in between, after
// which it says that it still has it, must not make a test that shows nothing.
type claimer struct {
	*history
	id  int
	c   *client.Client
	rng *rand.Rand

	wanted int64 // since when it asks
	// broken is its oldest want whose stream broke before the answer. What the server
	// claimed for that is told when the worker comes back, whatever it has asked for since.
	broken int64
	has    []*boardv1.StepAssignment // the first is what it works at
}

func (w *claimer) run(ctx context.Context) {
	w.wanted = w.now()
	for ctx.Err() == nil {
		w.once(ctx)
		if len(w.has) == 0 && w.broken == 0 {
			w.broken = w.wanted
		}
	}
}

// once is one stream.
func (w *claimer) once(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := w.c.Steps.Connect(ctx)
	if err != nil {
		return
	}
	hello := &boardv1.BoardWorkerHello{
		WorkerId: fmt.Sprint("w-", w.id), BootId: fmt.Sprint("boot-", w.id),
		WorkerPoolIds: []string{"go"}, Capacity: 1,
	}
	for _, a := range w.has {
		hello.RunIds = append(hello.RunIds, a.GetRun().GetRunId())
	}
	first := &boardv1.ConnectRequest{Hello: hello}
	if len(w.has) == 0 {
		first.Want = 1
	}
	if s.Send(first) != nil {
		return
	}
	for {
		for len(w.has) == 0 {
			m, err := s.Recv()
			if err != nil {
				return
			}
			w.took(m.GetAssigned())
		}
		if !w.finish(ctx, s) {
			return
		}
		if w.has = w.has[1:]; len(w.has) > 0 {
			continue
		}
		w.wanted = w.now()
		if s.Send(&boardv1.ConnectRequest{Want: 1}) != nil {
			return
		}
	}
}

// took notes claims, and from when on they may be lost again.
func (w *claimer) took(assigned []*boardv1.StepAssignment) {
	for _, a := range assigned {
		since := w.wanted
		if at := int64(a.GetRun().GetDispatchedAt().AsTime().Sub(w.began)); at < since && w.broken > 0 {
			since = w.broken
		}
		w.has = append(w.has, a)
		step, run := a.GetStep().GetStepId(), a.GetRun().GetRunId()
		w.add(w.id, op{step, "claim", run}, since, outcome{}, w.now(), "claim")
		w.add(w.id, op{step, "expire", run}, since+int64(linearLease), outcome{}, math.MaxInt64, "expire")
	}
}

// finish reports the step that it works at, sometimes too late, and waits for the
// answer; false if the stream broke before it came.
func (w *claimer) finish(ctx context.Context, s grpc.BidiStreamingClient[boardv1.ConnectRequest,
	boardv1.ConnectResponse],
) bool {
	pause := time.Duration(w.rng.IntN(20)) * time.Millisecond
	if w.rng.IntN(10) == 0 {
		pause = linearLease + time.Duration(w.rng.IntN(600)-200)*time.Millisecond
	}
	if w.id == 0 && w.count("refused") == 0 {
		pause = 2 * linearLease
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
	}
	step, run := w.has[0].GetStep().GetStepId(), w.has[0].GetRun().GetRunId()
	call := w.now()
	report := &boardv1.StepReport{
		RunId: run, Status: boardv1.StepStatus_STEP_STATUS_COMPLETED, ResultSummary: &run, Finished: true,
	}
	if s.Send(&boardv1.ConnectRequest{Reports: []*boardv1.StepReport{report}}) != nil {
		w.add(w.id, op{step, "complete", run}, call, outcome{word: "unknown"}, math.MaxInt64, "unknown")
		return false
	}
	for {
		m, err := s.Recv()
		if err != nil {
			w.add(w.id, op{step, "complete", run}, call, outcome{word: "unknown"}, math.MaxInt64, "unknown")
			return false
		}
		w.took(m.GetAssigned())
		for _, a := range m.GetAcks() {
			if a.GetRunId() != run {
				continue
			}
			if a.GetError() == "" {
				w.add(w.id, op{step, "complete", run}, call, outcome{word: "stored"}, w.now(), "stored")
			} else {
				w.add(w.id, op{step, "complete", run}, call, outcome{word: "refused"}, w.now(), "refused")
			}
			return true
		}
	}
}

func spawnNamed(ctx context.Context, c *client.Client, agentID string) error {
	return must.Err(c.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))
}
