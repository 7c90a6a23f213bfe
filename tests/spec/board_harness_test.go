package spec

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/dev"
)

const session = "keeper"

// boards is a running server with one orchestrator, seen through its public API.
type boards struct {
	*dev.Server
	t       *testing.T
	workers int
}

func newBoards(t *testing.T) *boards {
	b := &boards{Server: dev.Start(t), t: t}
	must.Value(b.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		AgentId: session, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	return b
}

func step(id string, deps ...string) *boardv1.StepInput {
	return &boardv1.StepInput{StepId: id, Title: "Step " + id, DependsOnStepIds: deps}
}

func optional(s *boardv1.StepInput) *boardv1.StepInput {
	required := false
	s.Required = &required
	return s
}

func (b *boards) create(board string, steps ...*boardv1.StepInput) *boardv1.Board {
	b.t.Helper()
	return must.Value(b.Boards.CreateBoard(dev.Within(b.t), &boardv1.CreateBoardRequest{
		SessionId: session, BoardId: board, WalName: board, Title: "Board " + board, Steps: steps,
	}))(b.t).GetBoard()
}

func (b *boards) get(board string) *boardv1.Board {
	b.t.Helper()
	got, err := b.Boards.GetBoard(dev.Within(b.t), &boardv1.GetBoardRequest{SessionId: session, BoardId: board})
	require.NoError(b.t, err)
	return got.GetBoard()
}

func (b *boards) step(board, id string) *boardv1.Step {
	b.t.Helper()
	for _, s := range b.get(board).GetSteps() {
		if s.GetStepId() == id {
			return s
		}
	}
	require.Failf(b.t, "no such step", "%s/%s", board, id)
	return nil
}

// set changes a step's status as the orchestrator.
func (b *boards) set(board, id string, to boardv1.StepStatus) error {
	return must.Err(b.Boards.UpdateStep(dev.Within(b.t), &boardv1.UpdateStepRequest{
		SessionId: session, BoardId: board, StepId: id, Status: to,
	}))
}

func (b *boards) patch(board string, ops ...*boardv1.Operation) error {
	return must.Err(b.Boards.UpdateBoard(dev.Within(b.t), &boardv1.UpdateBoardRequest{
		SessionId: session, BoardId: board, Operations: ops,
	}))
}

// query reads the ids of steps as the orchestrator.
func (b *boards) query(req *boardv1.QueryStepsRequest) (ids []string, truncated bool) {
	b.t.Helper()
	req.SessionId = session
	got := must.Value(b.Boards.QuerySteps(dev.Within(b.t), req))(b.t)
	return stepIDs(got), got.GetTruncated()
}

func stepIDs(got *boardv1.QueryStepsResponse) []string {
	ids := []string{}
	for _, s := range got.GetSteps() {
		ids = append(ids, s.GetStepId())
	}
	return ids
}

type walLine struct {
	Seq     int64           `json:"wal_seq"`
	Type    string          `json:"event_type"`
	StepID  string          `json:"step_id"`
	Actor   string          `json:"actor_agent_id"`
	Payload json.RawMessage `json:"payload"`
}

// wal reads the lines of a board's log behind a position.
func (b *boards) wal(board string, after int64) []walLine {
	b.t.Helper()
	got := must.Value(b.Boards.ReadWal(dev.Within(b.t), &boardv1.ReadWalRequest{
		SessionId: session, WalName: board, AfterWalSeq: after,
	}))(b.t)
	require.False(b.t, got.GetTruncated())
	var lines []walLine
	for raw := range bytes.Lines(got.GetLines()) {
		var l walLine
		require.NoError(b.t, json.Unmarshal(raw, &l))
		lines = append(lines, l)
	}
	return lines
}

func types(lines []walLine) []string {
	out := []string{}
	for _, l := range lines {
		out = append(out, l.Type)
	}
	return out
}

// workerRun is a dispatched run that chooses its step itself, with the run's own credential.
type workerRun struct {
	b     *boards
	board string
	id    string
	token string
	stop  func()
}

// dispatch connects a new worker and dispatches it to a board.
func (b *boards) dispatch(board, pool string, allowed ...string) *workerRun {
	b.t.Helper()
	b.workers++
	worker := fmt.Sprint("worker-", b.workers)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.t.Cleanup(cancel)
	stream := must.Value(b.Steps.Connect(ctx))(b.t)
	require.NoError(b.t, stream.Send(&boardv1.ConnectRequest{Hello: &boardv1.BoardWorkerHello{
		WorkerId: worker, BootId: "boot", WorkerPoolIds: []string{pool}, Capacity: 1, ChoosesSteps: true,
	}}))
	require.Eventually(b.t, func() bool {
		list, err := b.Boards.ListWorkers(ctx, &boardv1.ListWorkersRequest{})
		if err != nil {
			return false
		}
		for _, w := range list.GetWorkers() {
			if w.GetWorkerId() == worker {
				return true
			}
		}
		return false
	}, time.Minute, 5*time.Millisecond)
	req := &boardv1.DispatchWorkerRequest{SessionId: session, BoardId: board, WorkerPoolId: pool, WorkerId: worker}
	if len(allowed) > 0 {
		req.AllowedStepIds = &boardv1.StepList{StepIds: allowed}
	}
	must.Value(b.Boards.DispatchWorker(ctx, req))(b.t)
	for {
		m := must.Value(stream.Recv())(b.t)
		if a := m.GetAssigned(); len(a) > 0 {
			return &workerRun{b: b, board: board, id: a[0].GetRun().GetRunId(), token: a[0].GetRunToken(), stop: cancel}
		}
	}
}

func (w *workerRun) ctx() context.Context {
	return metadata.AppendToOutgoingContext(dev.Within(w.b.t), "authorization", "Bearer "+w.token)
}

func (w *workerRun) claim(id string) (*boardv1.ClaimStepResponse, error) {
	return w.b.Boards.ClaimStep(w.ctx(), &boardv1.ClaimStepRequest{SessionId: session, BoardId: w.board, StepId: id})
}

func (w *workerRun) query(req *boardv1.QueryStepsRequest) *boardv1.QueryStepsResponse {
	w.b.t.Helper()
	req.SessionId, req.BoardId = session, w.board
	return must.Value(w.b.Boards.QuerySteps(w.ctx(), req))(w.b.t)
}

func (w *workerRun) report(req *boardv1.UpdateStepRequest) error {
	req.SessionId, req.BoardId = session, w.board
	return must.Err(w.b.Boards.UpdateStep(w.ctx(), req))
}

// tool calls a tool as the orchestrator's agent, outside of a turn.
func (b *boards) tool(name string, args map[string]any) *agentv1.ToolResult {
	b.t.Helper()
	in := must.Value(structpb.NewStruct(args))(b.t)
	return must.Value(b.Agents.CallTool(dev.Within(b.t), &agentv1.CallToolRequest{
		AgentId: session, Name: name, Arguments: in,
	}))(b.t).GetResult()
}
