package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"quartet/tests/attack"
	"quartet/tests/proc"
)

const (
	attackQuiet    = 6 * time.Second
	attackLength   = 15 * time.Second
	updatePeriod   = 10 * time.Millisecond
	strangers      = 1000
	strangerOpens  = 8 * time.Second // in which the attacker opens its connections
	strangerPeriod = 100 * time.Millisecond
	attackedMiB    = 2048
	benchToken     = "the-bootstrap-token-of-the-benchmarks"
)

// measureAttacks measures what attackers cost the other callers of a server, and the server itself. The server is a
// separate process with one processor; this process and the attacker share another processor.
func measureAttacks(ctx context.Context, o options, say func(row)) error {
	hostile, stranger := o.wants(nameHostile), o.wants(nameStranger)
	if !hostile && !stranger {
		return nil
	}
	binary, err := proc.Build(o.dir, "quartet/cmd/quartet", "attacked")
	if err != nil {
		return err
	}
	pinned := runtime.NumCPU() > 1 && attack.Pin(ctx, os.Getpid(), "1") == nil
	if pinned {
		defer func() {
			_ = attack.Pin(context.WithoutCancel(ctx), os.Getpid(), "0-"+strconv.Itoa(runtime.NumCPU()-1)) // all again
		}()
	}
	if hostile {
		if err := beside(ctx, filepath.Join(o.dir, "hostile"), binary, pinned,
			func(q *proc.Quartet, n *attack.Neighbour) error {
				return hostileFigures(ctx, q, n, say)
			}); err != nil {
			return fmt.Errorf("%s: %w", nameHostile, err)
		}
	}
	if stranger {
		if err := beside(ctx, filepath.Join(o.dir, "stranger"), binary, pinned,
			func(q *proc.Quartet, n *attack.Neighbour) error {
				return strangerFigures(ctx, q, n, say)
			}); err != nil {
			return fmt.Errorf("%s: %w", nameStranger, err)
		}
	}
	return nil
}

// beside starts a server and a well-behaved tenant of it, calls measure with both, and ends them.
func beside(ctx context.Context, dir, binary string, pinned bool,
	measure func(*proc.Quartet, *attack.Neighbour) error,
) (err error) {
	q, err := proc.NewQuartet(binary, dir, "", "--auth", "required", "--bootstrap-token", benchToken,
		"--max-memory-mib", strconv.Itoa(attackedMiB), "--quota-mib", "1024", "--embedded-worker", "off")
	if err != nil {
		return err
	}
	if pinned {
		q.Binary, q.Args = "taskset", append([]string{"-c", "0", q.Binary}, q.Args...)
	}
	if err := q.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Kill()) }()
	n, err := attack.NewNeighbour(ctx, q.GRPC, benchToken)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return measure(q, n)
}

// hostileFigures measures updates of a tenant, alone and beside a hostile one.
func hostileFigures(ctx context.Context, q *proc.Quartet, n *attack.Neighbour, say func(row)) error {
	tenant, err := attack.NewTenant(ctx, q.GRPC, q.HTTP, benchToken)
	if err != nil {
		return err
	}
	before, quiet, err := attack.Measure(ctx, q.PID(), attackQuiet, updatePeriod, n.Update)
	if err != nil {
		return err
	}
	attacker, err := attack.Begin(ctx, attack.Spec{Tenant: tenant})
	if err != nil {
		return err
	}
	during, attacked, err := attack.Measure(ctx, q.PID(), attackLength, updatePeriod, n.Update)
	if err := errors.Join(err, attacker.End()); err != nil {
		return err
	}
	say(updates(nameQuiet, attackQuiet, quiet, before))
	say(updates(nameAttacked, attackLength, attacked, during))
	say(row{name: nameHostile, note: fmt.Sprintf("the server has at most %d MiB (limit %d), %d MiB before",
		during.Memory>>20, attackedMiB, before.Memory>>20)})
	return nil
}

// updates returns the row for the measured updates of a tenant.
func updates(name string, length time.Duration, s attack.Spread, used attack.Usage) row {
	return row{
		name: name, callers: 1, stats: stats{
			perSecond: float64(s.N) / length.Seconds(), p50: s.P50, p99: s.P99,
			cpu: used.CPU / time.Duration(s.N),
		},
		note: fmt.Sprintf("at most %d a second; the server ran for %s (p99 %s) during one", time.Second/updatePeriod,
			used.Calls.P50, used.Calls.P99),
	}
}

// strangerFigures measures what connections of callers without a credential cost a server with little other load.
func strangerFigures(ctx context.Context, q *proc.Quartet, n *attack.Neighbour, say func(row)) error {
	before, _, err := attack.Measure(ctx, q.PID(), attackQuiet, strangerPeriod, n.Update)
	if err != nil {
		return err
	}
	attacker,
		err := attack.Begin(ctx,
		attack.Spec{Stranger: &attack.Stranger{GRPC: q.GRPC, HTTP: q.HTTP, Connections: strangers}})
	if err != nil {
		return err
	}
	opening, _, err := attack.Measure(ctx, q.PID(), strangerOpens, strangerPeriod, n.Update)
	var during attack.Usage
	if err == nil {
		during, _, err = attack.Measure(ctx, q.PID(), attackQuiet, strangerPeriod, n.Update)
	}
	if err := errors.Join(err, attacker.End()); err != nil {
		return err
	}
	say(row{name: nameStranger, note: fmt.Sprintf("%d connections at once, then 10 new ones a second: %d MiB more "+
		"(target ≤ 64), and %.2f %% of one core more (target ≤ 2); opening them took %s of it",
		strangers, (max(opening.Memory, during.Memory)-before.Memory)>>20, 100*(during.CPU-before.CPU).
			Seconds()/attackQuiet.Seconds(), opening.CPU.Round(time.Millisecond))})
	return nil
}
