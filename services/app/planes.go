package app

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent"
	"quartet/services/app/calls"
	"quartet/services/audit"
	"quartet/services/board"
	"quartet/services/identity"
	"quartet/services/task"
	"quartet/services/waiting"
	"quartet/services/work"
)

// planeRow describes how a plane is built for the partitions that it holds.
type planeRow struct {
	name  string
	build func(d plane.Deps, share journal.Share) (planeService, error)
	needs []string // modules besides NATS that must run before it
	// search are the full names of methods whose request does not name an agent; they
	// are sent to each unit until one finds the record.
	search []string
	// missing may replace a NOT_FOUND of one of several partitions by a better error.
	missing func(ctx context.Context, req proto.Message, err error) error
}

// planes returns one row for each plane.
func (w *wiring) planes() []planeRow {
	return []planeRow{
		{name: "agent", build: func(d plane.Deps, share journal.Share) (planeService, error) {
			return agent.New(agent.Config{Share: share, Weights: w.weights, MaxChildren: w.cfg.MaxChildren}, agent.Deps{
				Deps: d, Work: w.calls.Work(), Waiting: waitingv1.NewWaitingServiceClient(w.calls.To("waiting")),
				Tasks:  taskv1.NewTaskServiceClient(w.calls.To("task")),
				Boards: boardv1.NewBoardServiceClient(w.calls.To("board")),
				Conn:   w.calls.Conn, MintRun: w.creds.keyring.MintRun,
				Allowed: identity.Allows, Within: identity.WithinAgents,
			})
		}},
		{name: "work", build: func(d plane.Deps, share journal.Share) (planeService, error) {
			return work.New(work.Config{Share: share, Home: w.cfg.HomeDir},
				work.Deps{Deps: d, Tasks: w.calls, Agents: w.calls})
		}, search: []string{workv1.WorkService_FindWorkItem_FullMethodName}, missing: w.calls.ForeignItem},
		{name: "waiting", build: func(d plane.Deps, share journal.Share) (planeService, error) {
			rechecks, err := rechecksOf(w.cfg.NamespaceRechecks)
			if err != nil {
				return nil, err
			}
			return waiting.New(waiting.Config{
				Share: share, PublicURL: w.app.publicURL(),
				DefaultRecheck: w.cfg.DefaultRecheck, NamespaceRechecks: rechecks,
			}, waiting.Deps{
				Deps: d, Work: w.calls.Work(), Tasks: taskv1.NewTaskServiceClient(w.calls.To("task")), Agents: w.calls,
				Keys: w.keys, Quota: w.gate,
			})
		}, search: []string{
			waitingv1.WaitingService_DeliverTrigger_FullMethodName,
			waitingv1.WaitingService_CheckDelivery_FullMethodName,
		}},
		{name: "task", build: func(d plane.Deps, share journal.Share) (planeService, error) {
			return task.New(task.Config{Share: share, LeaseTerm: w.cfg.CommandLease, KeepOutput: w.cfg.keepOutput()},
				task.Deps{
					Deps: d, Output: w.output, Workspace: w.calls.Workspace, OwnsItem: w.calls.OwnsItem,
					Children: calls.Children{Planes: w.calls},
				})
		}, needs: []string{"output"}},
		{name: "board", build: func(d plane.Deps, share journal.Share) (planeService, error) {
			return board.New(board.Config{
				Share: share, LeaseTerm: w.cfg.StepLease, CancelWait: w.cfg.CancelWait,
				TokenBudget: w.cfg.BoardBudget,
			}, board.Deps{
				Deps: d, Orchestrates: w.calls.Orchestrates, MintRun: func(namespace, workerID, runID string) string {
					return w.creds.keyring.Mint(rpc.Actor{
						Namespace: namespace, Principal: "worker/" + workerID,
						Role: rpc.RoleWorker, AgentID: workerID, RunID: runID,
					})
				},
			})
		}},
		{name: "identity", build: func(d plane.Deps, _ journal.Share) (planeService, error) {
			return identity.New(identity.Deps{
				Deps: d, Installation: w.keys, Known: w.creds.keys.Known,
				Processes: w.listProcesses, Usage: w.gate.Usage, Largest: w.gate.Largest, Version: w.version,
			})
		}},
		{name: "audit", build: func(d plane.Deps, _ journal.Share) (planeService, error) { return audit.New(d) }},
	}
}
