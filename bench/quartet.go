package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/app"
)

// agents is how many agents the callers use, so that the calls are about many agents, as on a real server.
const agents = 64

// quartet is the whole system (planes, bus, scheduler and gateway) with default settings, in this
// process.
type quartet struct {
	app     *app.App
	conn    *grpc.ClientConn
	agents  agentv1.AgentServiceClient
	work    workv1.WorkServiceClient
	waiting waitingv1.WaitingServiceClient
}

func start(ctx context.Context, dir string) (*quartet, error) {
	a, err := app.New(app.Config{
		WorkerUnconfined: true, Open: true,
		DataDir: dir, GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0",
		Publish: true, Replicas: 1, WorkerID: "bench", WorkerCapacity: 1,
	}, zap.NewNop(), "bench")
	if err != nil {
		return nil, err
	}
	q := &quartet{app: a}
	if err := a.Start(ctx); err != nil {
		q.stop(ctx)
		return nil, err
	}
	if q.conn, err = dial(a.GRPCAddr()); err != nil {
		q.stop(ctx)
		return nil, err
	}
	q.agents, q.work = agentv1.NewAgentServiceClient(q.conn), workv1.NewWorkServiceClient(q.conn)
	q.waiting = waitingv1.NewWaitingServiceClient(q.conn)
	return q, nil
}

// stop stops the system. It is idempotent.
func (q *quartet) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if q == nil || q.app == nil {
		return
	}
	if q.conn != nil {
		_ = q.conn.Close()
	}
	_ = q.app.Stop(ctx)
	q.app = nil
}

// measureQuartet measures latency and mutations of a small installation.
func measureQuartet(ctx context.Context, o options, say func(row)) error {
	q, err := start(ctx, filepath.Join(o.dir, "quartet"))
	if err != nil {
		return err
	}
	defer q.stop(ctx)
	if err := q.spawn(ctx, agents); err != nil {
		return err
	}
	stop, err := o.profile()
	if err != nil {
		return err
	}
	if err := measureLatency(ctx, o, q, agentName(0), true, say); err != nil {
		return errors.Join(err, stop())
	}
	return errors.Join(measureMutations(ctx, o, q.work, say), stop())
}

// measureMutations measures mutations alternately with their physical limits.
func measureMutations(ctx context.Context, o options, wk workv1.WorkServiceClient, say func(row)) error {
	echo, closeEcho, err := echoFigure(ctx)
	if err != nil {
		return err
	}
	defer closeEcho()
	messages, closeMessages, err := messagesFigure(ctx, o)
	if err != nil {
		return err
	}
	defer closeMessages()
	fsync, closeFsync, err := fsyncFigure(o)
	if err != nil {
		return err
	}
	defer closeFsync()
	up, err := updateFigure(ctx, wk)
	if err != nil {
		return err
	}
	for _, n := range o.callers {
		figures := []figure{echo, up, createFigure(wk), messages}
		if n == 1 {
			figures = append([]figure{fsync}, figures...)
		}
		figures = slices.DeleteFunc(figures, func(f figure) bool { return !o.wants(f.name) })
		rows, err := alternate(ctx, n, o.span, figures)
		if err != nil {
			return err
		}
		for _, r := range rows {
			say(r)
		}
	}
	return nil
}

func createFigure(wk workv1.WorkServiceClient) figure {
	return figure{name: nameCreate, note: "durable, bus on", op: func(ctx context.Context, caller, i int) error {
		_, err := wk.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: agentName(caller % agents), Objective: fmt.Sprintf("Item %d of caller %d, with an objective of "+
				"ordinary length", i, caller),
		})
		return err
	}}
}

func updateFigure(ctx context.Context, wk workv1.WorkServiceClient) (figure, error) {
	items := make([]string, max(256, agents))
	for i := range items {
		r, err := wk.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId:   agentName(i % agents),
			Objective: "to be updated",
		})
		if err != nil {
			return figure{}, err
		}
		items[i] = r.GetWorkItem().GetWorkItemId()
	}
	return figure{name: nameUpdate, note: "durable, bus on", op: func(ctx context.Context, caller, i int) error {
		_, err := wk.UpdateWorkItem(ctx, update(agentName(caller%agents), items[caller%len(items)], caller, i))
		return err
	}}, nil
}

func agentName(i int) string { return fmt.Sprintf("agent-%d", i) }
