package session

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

const (
	// pageSize is how many records are read at once, and maxPages how many pages: no more than 10 000 records are
	// searched for the beginning of an id.
	pageSize, maxPages = 500, 20
)

// owner says whose records are listed.
type owner struct {
	agent string // also the session of boards
	board string
}

// record is a candidate: its id, and a few words about it.
type record struct{ id, about string }

// kind is what an argument or a flag names.
type kind struct {
	// what names several of the kind in messages.
	what string
	// prefix is how generated ids of the kind begin; empty for names that people choose.
	prefix string
	// list returns a page of the records of an owner: at least those whose id begins with the text begins. It moves
	// cursor, which is "" for the first page, to the next one, and to "" behind the last one.
	list func(ctx context.Context, conn grpc.ClientConnInterface, of owner, begins string, cursor *string) (
		page []record, err error)
}

var (
	agentKind = &kind{what: "agents", list: func(ctx context.Context, conn grpc.ClientConnInterface, _ owner,
		begins string, cursor *string,
	) ([]record, error) {
		resp, err := agentv1.NewAgentServiceClient(conn).
			ListAgents(ctx, &agentv1.ListAgentsRequest{
				IncludePrivate: strings.HasPrefix(begins, childPrefix),
				PageSize:       pageSize, PageToken: *cursor,
			})
		page := records(resp.GetAgents(), (*agentv1.Agent).GetAgentId, func(a *agentv1.Agent) string {
			return stateText(a.GetPosture(), a.GetPostureReason())
		})
		*cursor = resp.GetNextPageToken()
		// The list is in order of id.
		if len(page) > 0 && page[len(page)-1].id > begins && !strings.HasPrefix(page[len(page)-1].id, begins) {
			*cursor = ""
		}
		return page, err
	}}
	itemKind = &kind{what: "work items", prefix: "wi_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := workv1.NewWorkServiceClient(conn).ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
			AgentId: of.agent, OmitPlanPreviews: true, PageSize: pageSize, PageToken: *cursor,
		})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetWorkItems(), (*workv1.WorkItem).GetWorkItemId, func(it *workv1.WorkItem) string {
			return stateText(it.GetSchedulingState(), it.GetObjective())
		}), err
	}}
	taskKind = &kind{what: "tasks", prefix: "tsk_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := taskv1.NewTaskServiceClient(conn).
			ListTasks(ctx, &taskv1.ListTasksRequest{
				AgentId: of.agent, IncludeTerminal: true, PageSize: pageSize,
				PageToken: *cursor,
			})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetTasks(), (*taskv1.Task).GetTaskId, func(t *taskv1.Task) string {
			return stateText(t.GetState(), t.GetLabel())
		}), err
	}}
	waitKind = &kind{what: "waits", prefix: "wt_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := waitingv1.NewWaitingServiceClient(conn).
			ListWaits(ctx, &waitingv1.ListWaitsRequest{
				AgentId: of.agent, IncludeEnded: true, PageSize: pageSize,
				PageToken: *cursor,
			})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetWaits(), (*waitingv1.Wait).GetWaitId, func(w *waitingv1.Wait) string {
			return stateText(w.GetStatus(), w.GetReason()+w.GetCondition())
		}), err
	}}
	triggerKind = &kind{what: "triggers", prefix: "trg_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := waitingv1.NewWaitingServiceClient(conn).ListExternalTriggers(ctx,
			&waitingv1.ListExternalTriggersRequest{
				AgentId: of.agent, IncludeRevoked: true, PageSize: pageSize,
				PageToken: *cursor,
			})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetTriggers(), (*waitingv1.Trigger).GetTriggerId, func(t *waitingv1.Trigger) string {
			return stateText(t.GetStatus(), t.GetDescription())
		}), err
	}}
	timerKind = &kind{what: "timers", prefix: "tmr_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := waitingv1.NewWaitingServiceClient(conn).ListTimers(ctx, &waitingv1.ListTimersRequest{
			AgentId: of.agent, IncludeEnded: true, PageSize: pageSize, PageToken: *cursor,
		})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetTimers(), (*waitingv1.Timer).GetTimerId, func(t *waitingv1.Timer) string {
			return stateText(t.GetStatus(), t.GetDescription())
		}), err
	}}
	turnKind = &kind{what: "turns", prefix: "trn_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := agentv1.NewAgentServiceClient(conn).
			ListTurns(ctx, &agentv1.ListTurnsRequest{AgentId: of.agent, PageSize: pageSize, PageToken: *cursor})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetTurns(), (*agentv1.Turn).GetTurnId, func(t *agentv1.Turn) string {
			return stateText(t.GetState(), t.GetBoundWorkItemId())
		}), err
	}}
	boardKind = &kind{what: "boards", list: func(ctx context.Context, conn grpc.ClientConnInterface, of owner, _ string,
		cursor *string,
	) ([]record, error) {
		resp, err := boardv1.NewBoardServiceClient(conn).ListBoards(ctx, &boardv1.ListBoardsRequest{
			SessionId:       of.agent,
			IncludeTerminal: true, Limit: pageSize, Offset: offset(*cursor),
		})
		*cursor = next(*cursor, len(resp.GetBoards()), resp.GetTruncated())
		return records(resp.GetBoards(), (*boardv1.Board).GetBoardId, func(b *boardv1.Board) string {
			return stateText(b.GetStatus(), b.GetTitle())
		}), err
	}}
	runKind = &kind{what: "runs", prefix: "run_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		of owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := boardv1.NewBoardServiceClient(conn).ListWorkerRuns(ctx, &boardv1.ListWorkerRunsRequest{
			SessionId: of.agent, BoardId: of.board, Limit: pageSize,
		})
		*cursor = ""
		return records(resp.GetRuns(), (*boardv1.WorkerRun).GetRunId, func(r *boardv1.WorkerRun) string {
			return stateText(r.GetStatus(), r.GetClaimedStepId())
		}), err
	}}
	dispatchKind = &kind{
		what: "dispatches", prefix: "dsp_",
		list: func(ctx context.Context, conn grpc.ClientConnInterface, of owner, _ string, cursor *string) ([]record,
			error,
		) {
			resp, err := boardv1.NewBoardServiceClient(conn).InspectBoard(ctx, &boardv1.InspectBoardRequest{
				SessionId: of.agent, BoardId: of.board, Timeline: 1,
			})
			*cursor = ""
			return records(resp.GetDispatches(), (*boardv1.StandingDispatch).GetDispatchId, (*boardv1.StandingDispatch).
				GetWorkerPoolId), err
		},
	}
	stepKind = &kind{what: "steps", list: func(ctx context.Context, conn grpc.ClientConnInterface, of owner, _ string,
		cursor *string,
	) ([]record, error) {
		resp, err := boardv1.NewBoardServiceClient(conn).
			GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: of.agent, BoardId: of.board})
		*cursor = ""
		return records(resp.GetBoard().GetSteps(), (*boardv1.Step).GetStepId, func(s *boardv1.Step) string {
			return stateText(s.GetStatus(), s.GetTitle())
		}), err
	}}
	walKind = &kind{what: "logs", list: func(ctx context.Context, conn grpc.ClientConnInterface, of owner, _ string,
		cursor *string,
	) ([]record, error) {
		resp, err := boardv1.NewBoardServiceClient(conn).
			ListWals(ctx, &boardv1.ListWalsRequest{SessionId: of.agent, PageSize: pageSize, PageToken: *cursor})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetWals(), (*boardv1.Wal).GetWalName, func(w *boardv1.Wal) string {
			return stateText(w.GetStatus(), w.GetBoardId())
		}), err
	}}
	poolKind = &kind{what: "pools", list: func(ctx context.Context, conn grpc.ClientConnInterface, _ owner, _ string,
		cursor *string,
	) ([]record, error) {
		resp, err := boardv1.NewBoardServiceClient(conn).ListWorkers(ctx, &boardv1.ListWorkersRequest{})
		*cursor = ""
		known := map[string]bool{}
		var page []record
		for _, w := range resp.GetWorkers() {
			for _, pool := range w.GetWorkerPoolIds() {
				if !known[pool] {
					known[pool] = true
					page = append(page, record{id: pool})
				}
			}
		}
		return page, err
	}}
	toolKind = &kind{what: "tools", list: func(ctx context.Context, conn grpc.ClientConnInterface, of owner, _ string,
		cursor *string,
	) ([]record, error) {
		resp, err := agentv1.NewAgentServiceClient(conn).ListTools(ctx, &agentv1.ListToolsRequest{AgentId: of.agent})
		*cursor = ""
		return records(resp.GetTools(), (*agentv1.ToolSpec).GetName, (*agentv1.ToolSpec).GetDescription), err
	}}
	keyKind = &kind{what: "keys", prefix: "key_", list: func(ctx context.Context, conn grpc.ClientConnInterface,
		_ owner, _ string, cursor *string,
	) ([]record, error) {
		resp, err := identityv1.NewIdentityServiceClient(conn).
			ListKeys(ctx, &identityv1.ListKeysRequest{PageSize: pageSize, PageToken: *cursor})
		*cursor = resp.GetNextPageToken()
		return records(resp.GetKeys(), (*identityv1.Key).GetKeyId, func(k *identityv1.Key) string {
			return stateText(k.GetRole(), k.GetName())
		}), err
	}}
)

// childPrefix is how the ids of private children begin.
const childPrefix = "agt_"

// records returns the ids of messages and what is said about each.
func records[M proto.Message](all []M, id, about func(M) string) []record {
	out := make([]record, len(all))
	for i, m := range all {
		out[i] = record{id(m), about(m)}
	}
	return out
}

// stateText joins a state and what explains it.
func stateText(state protoreflect.Enum, more string) string {
	return strings.TrimSuffix(pbjson.EnumText(state)+": "+more, ": ")
}

// offset returns the offset that a cursor of next holds.
func offset(cursor string) int32 {
	n, err := strconv.ParseInt(cursor, 10, 32)
	if err != nil {
		return 0 // the first page
	}
	return int32(n)
}

// next returns the cursor behind a page of n records of a list that is read by offset.
func next(cursor string, n int, more bool) string {
	if !more || n == 0 {
		return ""
	}
	return strconv.Itoa(int(offset(cursor)) + n)
}
