package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// job is a job with about the size of an UpdateWorkItem request.
type job struct {
	Agent     string `json:"agent"`
	Objective string `json:"objective"`
}

// Kind returns the job's name.
func (job) Kind() string { return "job" }

// jobWorker sends a signal for each job, by which jobs are counted, and does nothing else.
type jobWorker struct {
	river.WorkerDefaults[job]
	done chan struct{}
}

// Work implements river.Worker. It blocks until the signal is received.
func (w *jobWorker) Work(context.Context, *river.Job[job]) error {
	w.done <- struct{}{}
	return nil
}

const objective = "check that every package of this repository builds, and say so"

// riverJobs is the number of jobs that are inserted before workers are measured.
const riverJobs = 10_000

type riverRig struct {
	pool   *pgxpool.Pool
	insert *river.Client[pgx.Tx]
}

func startRiver(ctx context.Context, dir string, known figures) (func() error, error) {
	url, stop, err := startPostgres(ctx, dir)
	if err != nil {
		return stop, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return stop, err
	}
	cfg.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return stop, err
	}
	closing := func() error {
		pool.Close()
		return stop()
	}
	if err := answers(ctx, pool); err != nil {
		return closing, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return closing, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return closing, err
	}
	insert, err := river.NewClient(driver, &river.Config{Logger: silent()})
	if err != nil {
		return closing, err
	}
	r := &riverRig{pool, insert}
	known["river_insert"], known["river_work"] = r.inserts, r.works
	return closing, nil
}

// answers waits up to 30 s until a server answers queries, which is later than when it begins to accept connections.
func answers(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := pool.Ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func silent() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// inserts measures single inserts from many callers, each of which waits for its commit.
func (r *riverRig) inserts(ctx context.Context, callers int, span time.Duration) (answer, error) {
	return load(ctx, callers, span, func(ctx context.Context) error {
		_, err := r.insert.Insert(ctx, job{"agent-1", objective}, nil)
		return err
	})
}

// works measures how fast existing jobs are claimed, executed and completed. River fetches only as many
// jobs as it has free workers, so it is faster with many workers.
func (r *riverRig) works(ctx context.Context, count int, _ time.Duration) (answer, error) {
	if _, err := r.pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return answer{}, err
	}
	for n := 0; n < riverJobs; n += 1000 {
		params := make([]river.InsertManyParams, 1000)
		for i := range params {
			params[i].Args = job{"agent-1", objective}
		}
		if _, err := r.insert.InsertManyFast(ctx, params); err != nil {
			return answer{}, err
		}
	}
	w := &jobWorker{done: make(chan struct{}, riverJobs)}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	c, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: count}},
		FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond,
		Workers: workers, Logger: silent(),
	})
	if err != nil {
		return answer{}, err
	}
	began := time.Now()
	if err := c.Start(ctx); err != nil {
		return answer{}, err
	}
	for range riverJobs {
		select {
		case <-w.done:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
	// Stop returns when the jobs are stored as completed, so the measured time includes that.
	if err := c.Stop(ctx); err != nil {
		return answer{}, err
	}
	took := time.Since(began)
	var left int
	if err := r.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state <> 'completed'").Scan(&left); err !=
		nil {
		return answer{}, err
	}
	if left != 0 {
		return answer{}, errors.New("river left jobs uncompleted")
	}
	return answer{Done: riverJobs, Span: took}, nil
}

// load runs op from n concurrent callers for a warm-up and then a span, and returns the result for the span.
func load(ctx context.Context, n int, span time.Duration, op func(context.Context) error) (answer, error) {
	begin := time.Now().Add(max(span/4, 100*time.Millisecond))
	end := begin.Add(span)
	took := make([][]time.Duration, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for c := range n {
		all.Go(func() {
			for {
				at := time.Now()
				if at.After(end) {
					return
				}
				if err := op(ctx); err != nil {
					errs[c] = err
					return
				}
				if now := time.Now(); now.After(begin) && now.Before(end) {
					took[c] = append(took[c], now.Sub(at))
				}
			}
		})
	}
	all.Wait()
	a := answer{Span: span}
	for _, t := range took {
		a.Took = append(a.Took, t...)
	}
	a.Done = len(a.Took)
	return a, errors.Join(errs...)
}
