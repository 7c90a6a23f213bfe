package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/app"

	"google.golang.org/protobuf/types/known/durationpb"
)

// agents share the callers, as tenants of one server do.
const agents = 64

// triggers is how many deliveries the latency is measured over.
const triggers = 300

// measureQuartet is the whole system in one process: planes, bus, scheduler,
// gateway, with its usual settings.
func measureQuartet(ctx context.Context, o options, say func(row)) error {
	a, err := app.New(app.Config{
		DataDir: filepath.Join(o.dir, "quartet"), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0",
		Publish: true, Replicas: 1, WorkerID: "bench", WorkerCapacity: 1,
	}, zap.NewNop(), "bench")
	if err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		_ = a.Stop(stopping)
	}()
	conn, err := dial(a.GRPCAddr())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ag, wk := agentv1.NewAgentServiceClient(conn), workv1.NewWorkServiceClient(conn)
	for i := range agents {
		if _, err := ag.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: agentName(i), Preset: agentv1.Preset_PRESET_PUBLIC_NAMED}); err != nil {
			return err
		}
	}
	stop, err := o.profile()
	if err != nil {
		return err
	}
	for _, measure := range []func() error{
		func() error {
			return measureLatency(ctx, o, a.HTTPAddr(), ag, waitingv1.NewWaitingServiceClient(conn), say)
		},
		func() error { return measureUpdate(ctx, o, wk, say) },
		func() error { return measureCreate(ctx, o, wk, say) },
	} {
		if err := measure(); err != nil {
			return errors.Join(err, stop())
		}
	}
	return stop()
}

func measureCreate(ctx context.Context, o options, wk workv1.WorkServiceClient, say func(row)) error {
	if !o.wants(nameCreate) {
		return nil
	}
	for _, n := range o.callers {
		s, err := load(ctx, n, o.span, func(ctx context.Context, caller, i int) error {
			_, err := wk.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
				AgentId: agentName(caller % agents), Objective: fmt.Sprintf("Item %d of caller %d, with an objective of ordinary length", i, caller),
			})
			return err
		})
		if err != nil {
			return err
		}
		say(row{name: nameCreate, callers: n, stats: s, note: "durable, bus on"})
	}
	return nil
}

func measureUpdate(ctx context.Context, o options, wk workv1.WorkServiceClient, say func(row)) error {
	if !o.wants(nameUpdate) {
		return nil
	}
	items := make([]string, max(256, agents))
	for i := range items {
		r, err := wk.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: agentName(i % agents), Objective: "to be updated"})
		if err != nil {
			return err
		}
		items[i] = r.GetWorkItem().GetWorkItemId()
	}
	for _, n := range o.callers {
		s, err := load(ctx, n, o.span, func(ctx context.Context, caller, i int) error {
			_, err := wk.UpdateWorkItem(ctx, update(agentName(caller%agents), items[caller%len(items)], caller, i))
			return err
		})
		if err != nil {
			return err
		}
		say(row{name: nameUpdate, callers: n, stats: s, note: "durable, bus on"})
	}
	return nil
}

func agentName(i int) string { return fmt.Sprintf("agent-%d", i) }

// measureLatency is from an outside system's POST to the runner holding the
// turn, on an idle system.
func measureLatency(ctx context.Context, o options, httpAddr string, ag agentv1.AgentServiceClient, wt waitingv1.WaitingServiceClient, say func(row)) error {
	for _, c := range []struct {
		name string
		mode waitingv1.DeliveryMode
	}{
		{"trigger POST → turn held (message)", waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL},
		{"trigger POST → turn held (wake hint)", waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT},
	} {
		if !o.wants(c.name) {
			continue
		}
		tr, err := wt.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{AgentId: agentName(0), DeliveryMode: c.mode})
		if err != nil {
			return err
		}
		url := "http://" + httpAddr + "/v1/triggers/" + tr.GetToken()
		var all []time.Duration
		for i := range triggers {
			took, err := oneTrigger(ctx, ag, url)
			if err != nil {
				return fmt.Errorf("%s, delivery %d: %w", c.name, i, err)
			}
			all = append(all, took)
		}
		var sum time.Duration
		for _, d := range all {
			sum += d
		}
		s, err := summarise(all, sum)
		if err != nil {
			return err
		}
		say(row{name: c.name, callers: 1, stats: s, note: "target p50 ≤ 3 ms, p99 ≤ 10 ms"})
	}
	return nil
}

func oneTrigger(ctx context.Context, ag agentv1.AgentServiceClient, url string) (time.Duration, error) {
	type got struct {
		r   *agentv1.AcquireTurnResponse
		at  time.Time
		err error
	}
	held := make(chan got, 1)
	go func() {
		r, err := ag.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{AgentIds: []string{agentName(0)}, Wait: durationpb.New(20 * time.Second)})
		held <- got{r, time.Now(), err}
	}()
	<-time.After(20 * time.Millisecond) // the runner waits, the system is idle
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"build":"green"}`))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	// Read to its end, or the connection is given up and the next delivery
	// measures how long it takes to make another one.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if err := resp.Body.Close(); err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the trigger answered %s", resp.Status)
	}
	g := <-held
	if g.err != nil {
		return 0, g.err
	}
	if g.r.GetPending() {
		return 0, fmt.Errorf("no turn within 20 s")
	}
	_, err = ag.FinishTurn(ctx, &agentv1.FinishTurnRequest{AgentId: agentName(0), TurnId: g.r.GetTurn().GetTurnId(), RunId: g.r.GetTurn().GetRunId()})
	return g.at.Sub(began), err
}
