package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/id"
	"quartet/pkg/natsd"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
)

// fleet is an installation on a NATS server of its own, with several instances of
// the work service.
type fleet struct {
	broker *natsd.Server
	apps   []*app.App
	conns  []*grpc.ClientConn
	any    []workv1.WorkServiceClient // a client of each instance of the work service
	items  []string

	network *rpc.Network
	learnt  workv1.WorkServiceClient // calls the instance that holds the agent, as it has learnt
}

func startFleet(ctx context.Context, dir string, n int) (f *fleet, err error) {
	f = &fleet{}
	defer func() {
		if err != nil {
			f.stop(ctx)
		}
	}()
	if f.broker, err = natsd.Start(natsd.Config{StoreDir: filepath.Join(dir, "nats"), Port: 0}); err != nil {
		return f, err
	}
	others := []string{"agent", "task", "waiting", "board", "identity", "scheduler"}
	addr := map[string]string{}
	var first string
	for i := range n + 1 {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return f, err
		}
		at := lis.Addr().String()
		if err := lis.Close(); err != nil {
			return f, err
		}
		cfg := app.Config{
			WorkerUnconfined: true, Open: true,
			DataDir: filepath.Join(dir, fmt.Sprint(i)), HomeDir: filepath.Join(dir, "home"),
			KeyFile: filepath.Join(dir, "key"),
			NATSURL: f.broker.URL(), GRPCAddr: at, HTTPAddr: "127.0.0.1:0", Addresses: addr, Publish: true, Replicas: 1,
			Serve: []string{"work"},
		}
		if i == 0 {
			first = at
			cfg.Serve = others
			for _, s := range others {
				addr[s] = at
			}
		} else if addr["work"] == "" {
			addr["work"] = at
		}
		a, err := app.New(cfg, zap.NewNop(), "bench")
		if err != nil {
			return f, err
		}
		if err := a.Start(ctx); err != nil {
			return f, err
		}
		f.apps = append(f.apps, a)
		conn, err := dial(at)
		if err != nil {
			return f, err
		}
		f.conns = append(f.conns, conn)
		if at != first {
			f.any = append(f.any, workv1.NewWorkServiceClient(conn))
		}
	}
	// As the gateway and the other services call: they learn which instance holds an agent.
	f.network = rpc.NewNetwork(rpc.NetworkConfig{Service: "bench", Addresses: addr, NewID: id.New().New})
	conn, err := f.network.Dial("work")
	if err != nil {
		return f, err
	}
	f.learnt = workv1.NewWorkServiceClient(conn)
	for ready := false; !ready; {
		ready = !slices.ContainsFunc(f.apps, func(a *app.App) bool { return a.Ready() != nil })
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	ag := agentv1.NewAgentServiceClient(f.conns[0])
	for i := range agents {
		if _, err := ag.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentName(i),
			Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
		}); err != nil {
			return f, err
		}
	}
	for i := range 256 {
		r, err := f.any[0].CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId:   agentName(i % agents),
			Objective: "to be updated",
		})
		if err != nil {
			return f, err
		}
		f.items = append(f.items, r.GetWorkItem().GetWorkItemId())
	}
	return f, nil
}

func (f *fleet) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	for _, c := range f.conns {
		_ = c.Close()
	}
	if f.network != nil {
		_ = f.network.Close()
	}
	for _, a := range slices.Backward(f.apps) {
		_ = a.Stop(ctx)
	}
	if f.broker != nil {
		f.broker.Stop()
	}
}

// figure measures UpdateWorkItem calls, each caller updating an item of its own agent through the
// client that ask returns for it.
func (f *fleet) figure(name, note string, ask func(caller int) workv1.WorkServiceClient) figure {
	return figure{name: name, note: note, op: func(ctx context.Context, caller, i int) error {
		_, err := ask(caller).UpdateWorkItem(ctx, update(agentName(caller%agents), f.items[caller%len(f.items)], caller,
			i))
		return err
	}}
}

// measureInstances compares one instance of the work service with three on the same machine. The
// gateway and the services call the instance that holds an agent; other clients call any
// instance, which forwards the call.
func measureInstances(ctx context.Context, o options, say func(row)) error {
	const nameOne, nameThree, nameAny = "UpdateWorkItem, one instance on NATS",
		"UpdateWorkItem, three instances on NATS", "UpdateWorkItem, three instances on NATS, any asked"
	if !o.wants(nameOne) && !o.wants(nameThree) && !o.wants(nameAny) {
		return nil
	}
	one, err := startFleet(ctx, filepath.Join(o.dir, "one"), 1)
	if err != nil {
		return err
	}
	defer one.stop(ctx)
	three, err := startFleet(ctx, filepath.Join(o.dir, "three"), 3)
	if err != nil {
		return err
	}
	defer three.stop(ctx)
	figures := []figure{
		one.figure(nameOne, "6 partitions", func(int) workv1.WorkServiceClient { return one.learnt }),
		three.figure(nameThree, "6 partitions, asked as the gateway does", func(int) workv1.WorkServiceClient {
			return three.learnt
		}),
		three.figure(nameAny, "6 partitions, two of three calls are handed on",
			func(caller int) workv1.WorkServiceClient { return three.any[caller%len(three.any)] }),
	}
	figures = slices.DeleteFunc(figures, func(f figure) bool { return !o.wants(f.name) })
	stop, err := o.profile()
	if err != nil {
		return err
	}
	rows, err := alternate(ctx, 256, o.span, figures)
	for _, r := range rows {
		say(r)
	}
	return errors.Join(err, stop())
}
