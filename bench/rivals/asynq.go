package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// asynqTasks is the number of tasks that are enqueued before workers are measured.
const asynqTasks = 5_000

type asynqRig struct {
	opt    asynq.RedisClientOpt
	client *asynq.Client
}

func startAsynq(ctx context.Context, dir string, known figures) (func() error, error) {
	addr, stop, err := startRedis(ctx, dir)
	if err != nil {
		return stop, err
	}
	opt := asynq.RedisClientOpt{Addr: addr, PoolSize: 300}
	a := &asynqRig{opt, asynq.NewClient(opt)}
	known["asynq_enqueue"], known["asynq_work"] = a.enqueues, a.works
	return func() error { return errors.Join(a.client.Close(), stop()) }, nil
}

func task() (*asynq.Task, error) {
	raw, err := json.Marshal(job{"agent-1", objective})
	return asynq.NewTask("job", raw), err
}

// enqueues measures how fast many callers enqueue single tasks.
func (a *asynqRig) enqueues(ctx context.Context, callers int, span time.Duration) (answer, error) {
	return load(ctx, callers, span, a.enqueue)
}

func (a *asynqRig) enqueue(ctx context.Context) error {
	t, err := task()
	if err != nil {
		return err
	}
	_, err = a.client.EnqueueContext(ctx, t)
	return err
}

// works measures how fast existing tasks are claimed, executed and completed.
func (a *asynqRig) works(ctx context.Context, workers int, _ time.Duration) (answer, error) {
	inspector := asynq.NewInspector(a.opt)
	defer func() { _ = inspector.Close() }()
	if _, err := inspector.DeleteAllPendingTasks("default"); err != nil && !errors.Is(err, asynq.ErrQueueNotFound) &&
		!strings.Contains(err.Error(), "does not exist") {
		return answer{}, err
	}
	lay := make(chan error, 64)
	for range cap(lay) {
		go func() {
			for range asynqTasks / cap(lay) {
				if err := a.enqueue(ctx); err != nil {
					lay <- err
					return
				}
			}
			lay <- nil
		}()
	}
	for range cap(lay) {
		if err := <-lay; err != nil {
			return answer{}, err
		}
	}
	const all = asynqTasks / 64 * 64
	done := make(chan struct{}, all)
	srv := asynq.NewServer(a.opt, asynq.Config{Concurrency: workers, LogLevel: asynq.FatalLevel})
	began := time.Now()
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		done <- struct{}{}
		return nil
	})); err != nil {
		return answer{}, err
	}
	for range all {
		select {
		case <-done:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
	took := time.Since(began) // a few tasks may not be stored as completed yet, which favours asynq
	srv.Shutdown()
	return answer{Done: all, Span: took}, nil
}
