package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// api is the public interface, nothing else.
type api struct {
	conn      *grpc.ClientConn
	agents    agentv1.AgentServiceClient
	work      workv1.WorkServiceClient
	tasks     taskv1.TaskServiceClient
	events    eventv1.EventServiceClient
	scheduler schedulerv1.SchedulerServiceClient
}

func dial(addr string) (*api, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: time.Second,
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		}))
	if err != nil {
		return nil, err
	}
	return &api{
		conn: conn, agents: agentv1.NewAgentServiceClient(conn), work: workv1.NewWorkServiceClient(conn),
		tasks: taskv1.NewTaskServiceClient(conn), events: eventv1.NewEventServiceClient(conn),
		scheduler: schedulerv1.NewSchedulerServiceClient(conn),
	}, nil
}

func (a *api) close() { _ = a.conn.Close() }

// again repeats a call while the server is away. Every mutation carries a
// request id or an index of its own, so a repetition changes nothing twice.
func again[R any](ctx context.Context, call func(context.Context) (R, error)) (R, error) {
	for {
		one, cancel := context.WithTimeout(ctx, 70*time.Second)
		r, err := call(one)
		cancel()
		if err == nil || status.Code(err) != codes.Unavailable {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
