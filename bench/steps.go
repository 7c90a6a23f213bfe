package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

const (
	nameSteps   = "board steps claimed and completed"
	stepWorkers = 32
	manyWorkers = 2000 // with which River is fastest
	largeBoard  = 10_000
	smallBoard  = 100
)

// measureSteps measures how fast workers claim and complete steps, durably, over one stream, and
// whether a step of a large board costs as much as one of a small board.
func measureSteps(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameSteps) {
		return nil
	}
	q, err := start(ctx, filepath.Join(o.dir, "steps"))
	if err != nil {
		return err
	}
	defer q.stop(ctx)
	profiled, err := o.profile()
	if err != nil {
		return err
	}
	for _, workers := range []int{stepWorkers, manyWorkers} {
		rows, err := stepsOf(ctx, q, o, workers)
		if err != nil {
			return errors.Join(err, profiled())
		}
		for _, r := range rows {
			say(r)
		}
	}
	return profiled()
}

// stepsOf measures steps with the given number of workers, all over one stream.
func stepsOf(ctx context.Context, q *quartet, o options, workers int) ([]row, error) {
	keeper := fmt.Sprint("keeper-", workers)
	if _, err := q.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: keeper, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}); err != nil {
		return nil, err
	}
	c := client.New(q.conn)
	var worked atomic.Int64
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- c.RunSteps(working, client.StepOptions{ID: "bench", Pools: []string{"bench"}, Capacity: workers},
			func(context.Context, *boardv1.StepAssignment) (client.StepResult, error) {
				worked.Add(1)
				return client.StepResult{}, nil
			})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			fmt.Fprintln(os.Stderr, "bench: the worker:", err)
		}
	}()
	serial := 0
	// boards returns a function that measures boards of the given size, together with as many steps as largeBoard.
	boards := func(steps int) func(context.Context, int, time.Duration) (turn, error) {
		return func(ctx context.Context, _ int, _ time.Duration) (turn, error) {
			var ids []string
			for range largeBoard / steps {
				serial++
				id := fmt.Sprint("board-", serial)
				ids = append(ids, id)
				if err := layBoard(ctx, c, keeper, id, steps); err != nil {
					return turn{}, err
				}
			}
			rest(ctx)
			worked.Store(0)
			before, began := cpuTime(), time.Now()
			for _, id := range ids {
				if _, err := c.Boards.OpenStandingDispatch(ctx, &boardv1.OpenStandingDispatchRequest{
					SessionId: keeper, BoardId: id, WorkerPoolId: "bench",
				}); err != nil {
					return turn{}, err
				}
			}
			for worked.Load() < largeBoard && ctx.Err() == nil {
				<-time.After(time.Millisecond)
			}
			for _, id := range ids {
				if err := completed(ctx, c, keeper, id, steps); err != nil {
					return turn{}, err
				}
			}
			t := turn{done: largeBoard, span: time.Since(began), cpu: cpuTime() - before}
			for _, id := range ids {
				if _, err := c.Boards.CompleteBoard(ctx, &boardv1.CompleteBoardRequest{
					SessionId: keeper, BoardId: id,
				}); err != nil {
					return turn{}, err
				}
			}
			return t, nil
		}
	}
	return alternate(ctx, workers, o.span, []figure{
		{name: nameSteps, note: "durable, one stream, a board of 10 000", turn: boards(largeBoard)},
		{name: nameSteps + ", small boards", note: "100 boards of 100", turn: boards(smallBoard)},
	})
}

func layBoard(ctx context.Context, c *client.Client, keeper, id string, steps int) error {
	req := &boardv1.CreateBoardRequest{
		SessionId: keeper, BoardId: id, WalName: id, Title: "Bench",
		DefaultWorkerPoolId: "bench",
	}
	for i := range steps {
		req.Steps = append(req.Steps, &boardv1.StepInput{
			StepId: fmt.Sprint("step-", i),
			Title:  "A step with a title of ordinary length",
		})
	}
	_, err := c.Boards.CreateBoard(ctx, req)
	return err
}

// completed waits until the board reports that each step is completed.
func completed(ctx context.Context, c *client.Client, keeper, id string, steps int) error {
	for {
		got, err := c.Boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: keeper, BoardId: id, OmitSteps: true})
		if err != nil {
			return err
		}
		if int(got.GetBoard().GetCounts().GetCompleted()) == steps {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}
