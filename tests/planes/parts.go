package planes

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/keyfile"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	agentplane "quartet/services/agent"
	"quartet/services/app/calls"
	boardplane "quartet/services/board"
	schedulerplane "quartet/services/scheduler"
	taskplane "quartet/services/task"
	taskoutput "quartet/services/task/output"
	waitingplane "quartet/services/waiting"
	workplane "quartet/services/work"
)

// Module is a service as the process runs it.
type Module interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Register(srv grpc.ServiceRegistrar)
}

// released ends the long polls of a service, so that it can stop.
type released interface{ Release() }

// Parts are what a service is built from. All are required.
type Parts struct {
	plane.Deps
	Home   string
	Output taskoutput.Store
	Keys   *rpc.Keyring
	// Calls are the calls of the service to others, and Conn are connections for the same.
	Calls calls.Planes
	Conn  func(service string) grpc.ClientConnInterface
	Sweep time.Duration // of the scheduler
	// StepLease is how long a worker may be silent about a step of a board; 0: the default.
	StepLease time.Duration
}

// Build returns a service of Names, or that of boards, wired as services/app wires it. It is not started.
func Build(name string, p Parts) (Module, error) {
	work, waiting, tasks := workv1.NewWorkServiceClient(p.Conn("work")),
		waitingv1.NewWaitingServiceClient(p.Conn("waiting")), taskv1.NewTaskServiceClient(p.Conn("task"))
	switch name {
	case "agent":
		return agentplane.New(agentplane.Config{}, agentplane.Deps{
			Deps: p.Deps, Work: work, Waiting: waiting, Tasks: tasks, MintRun: p.Keys.MintRun,
			Conn: func(service string) (grpc.ClientConnInterface, error) { return p.Conn(service), nil },
		})
	case "work":
		return workplane.New(workplane.Config{Home: p.Home}, workplane.Deps{
			Deps: p.Deps, Tasks: p.Calls,
			Agents: p.Calls,
		})
	case "waiting":
		return waitingplane.New(waitingplane.Config{}, waitingplane.Deps{
			Deps: p.Deps, Work: work, Tasks: tasks, Agents: p.Calls, Keys: keyfile.Fixed(keyfile.Of([]byte("key"))),
		})
	case "task":
		return taskplane.New(taskplane.Config{}, taskplane.Deps{
			Deps: p.Deps, Output: p.Output, Workspace: p.Calls.Workspace, OwnsItem: p.Calls.OwnsItem,
			Children: calls.Children{Planes: p.Calls},
		})
	case "board":
		return boardplane.New(boardplane.Config{LeaseTerm: p.StepLease}, boardplane.Deps{
			Deps: p.Deps, Orchestrates: p.Calls.Orchestrates, MintRun: func(namespace, workerID, runID string) string {
				return p.Keys.Mint(rpc.Actor{
					Namespace: namespace, Principal: "worker/" + workerID,
					Role: rpc.RoleWorker, AgentID: workerID, RunID: runID,
				})
			},
		})
	case "scheduler":
		return schedulerplane.New(schedulerplane.Config{Sweep: p.Sweep}, schedulerplane.Deps{
			Sources: p.Sources, Agents: agentv1.NewAgentServiceClient(p.Conn("agent")), Work: work, Waiting: waiting,
			Clock: p.Clock,
		})
	}
	return nil, fmt.Errorf("planes: there is no service %q", name)
}
