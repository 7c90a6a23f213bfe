package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"quartet/bench/scrape"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	nameSnapshot = yearsPrefix + "a snapshot after one in 1 000 agents changed"
	nameWhile    = yearsPrefix + "updates while snapshots are written and segments archived"

	snapshotAgents = 200_000
	oneIn          = 1000
	whileAgents    = 1000
	whileItems     = 10
	// whileSpan is how long each of the servers is measured, in turnsEach slices.
	whileSpan = turnsEach * 8 * time.Second
)

// measureSnapshots measures how much a snapshot writes of a large state with few changes, and how much snapshots and
// archiving slow down calls.
func measureSnapshots(ctx context.Context, o options, binary string, say func(row)) (rows []row, err error) {
	for _, m := range []struct {
		name    string
		measure func(ctx context.Context, binary, dir string) (string, error)
	}{
		{nameSnapshot, measureIncrement},
		{nameWhile, measureWhile},
	} {
		if !o.wants(m.name) {
			continue
		}
		note, err := m.measure(ctx, binary, o.dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		rows = append(rows, row{name: m.name, note: note})
		say(rows[len(rows)-1])
	}
	return rows, nil
}

// measureIncrement compares what snapshots of the work plane write after one in oneIn agents changed with the size
// of all pages, which it knows because each page is written once while the agents are made one after the other.
func measureIncrement(ctx context.Context, binary, dir string) (string, error) {
	dir = filepath.Join(dir, "years-increment")
	y, err := startYears(ctx, binary, dir, "--snapshot-mib=2")
	if err != nil {
		return "", err
	}
	defer func() { _ = y.stop() }()
	if err := y.spawn(ctx, snapshotAgents, 0); err != nil {
		return "", err
	}
	items := make([]string, snapshotAgents)
	err = y.each(ctx, 0, snapshotAgents, func(ctx context.Context, n int) error {
		made, err := y.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId:   agentName(n),
			Objective: objective(n), PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
		})
		items[n] = made.GetWorkItem().GetWorkItemId()
		return err
	})
	if err != nil {
		return "", err
	}
	<-time.After(restedAfter)
	made, err := y.snapshots(ctx)
	if err != nil {
		return "", err
	}

	if err := y.stop(); err != nil {
		return "", err
	}
	if y, err = startYears(ctx, binary, dir, "--snapshot-mib=1"); err != nil {
		return "", err
	}
	changed := func(ctx context.Context, n int) error {
		text, i := objective(snapshotAgents+n), n%(snapshotAgents/oneIn)*oneIn
		_, err := y.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
			AgentId: agentName(i), WorkItemId: items[i],
			Objective: &text,
		})
		return err
	}
	// The first snapshot after the start also has pages of agents that were made after the last snapshot before it.
	var from, to snapshotTotals
	for done, step := 0, 10_000; ; done += step {
		if err := y.each(ctx, done, done+step, changed); err != nil {
			return "", err
		}
		now, err := y.snapshots(ctx)
		if err != nil {
			return "", err
		}
		if from.count == 0 {
			from = now
		}
		if to = now; from.count > 0 && to.count >= from.count+3 {
			break
		}
	}
	count := to.count - from.count
	bytes, pages := (to.bytes-from.bytes)/count, (to.pages-from.pages)/count
	wholePages := pages * oneIn
	whole := made.bytes / made.pages * wholePages
	return fmt.Sprintf("%.1f KB in %.0f pages, of %.1f MB in %.0f: %.2f %% (target ≤ 1 %%; %d agents with an item "+
		"each, mean of %.0f snapshots of the work plane)",
		bytes/1e3, pages, whole/1e6, wholePages, 100*bytes/whole, snapshotAgents, count), nil
}

// measureWhile compares two servers that write snapshots and archive segments, one as often as by default and one
// eight times as often, with a server that does neither.
func measureWhile(ctx context.Context, binary, dir string) (string, error) {
	var figures []figure
	var servers []*years
	for _, of := range []struct {
		name     string
		settings []string
	}{
		{"without", []string{"--snapshot-mib=4096", "--segment-mib=4096"}},
		{"by default", nil},
		{"eight times as often", []string{"--snapshot-mib=2", "--segment-mib=8"}},
	} {
		y, err := startYears(ctx, binary, filepath.Join(dir, "years-while-"+strconv.Itoa(len(servers))), of.settings...)
		if err != nil {
			return "", err
		}
		defer func() { _ = y.stop() }()
		if err := y.spawn(ctx, whileAgents, whileItems); err != nil {
			return "", err
		}
		figures = append(figures, figure{name: of.name, op: func(ctx context.Context, caller, i int) error {
			n := (caller*977 + i) % len(y.items)
			text := objective(i)
			_, err := y.work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
				AgentId:    agentName(n % whileAgents),
				WorkItemId: y.items[n], Objective: &text,
			})
			return err
		}})
		servers = append(servers, y)
	}
	rows, err := alternate(ctx, yearCallers, whileSpan, figures)
	if err != nil {
		return "", err
	}
	without := rows[0]
	text := fmt.Sprintf("without %.0f/s, p99 %s", without.perSecond, without.p99.Round(10*time.Microsecond))
	for i, r := range rows[1:] {
		taken, err := servers[i+1].snapshots(ctx)
		if err != nil {
			return "", err
		}
		archived, err := scrape.Metric(ctx, servers[i+1].srv.HTTP, "quartet_archive_segments{")
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("; %s %.0f/s, %.2f of that, p99 %s, %.2f times (%.0f snapshots, %.0f archived segments)",
			r.name, r.perSecond, r.ratio(without.stats), r.p99.Round(10*time.Microsecond),
			float64(r.p99)/float64(without.p99), taken.count, archived)
	}
	return fmt.Sprintf("%s; %d callers in %d turns of %s each (target ≥ 0.90, ≤ 2 times)", text, yearCallers, turnsEach,
		whileSpan/turnsEach), nil
}

// snapshotTotals is what the snapshots of the work plane have written since the server was started.
type snapshotTotals struct{ count, bytes, pages float64 }

func (y *years) snapshots(ctx context.Context) (t snapshotTotals, err error) {
	err = scrape.Samples(ctx, y.srv.HTTP, func(name string, value float64) {
		switch name {
		case `quartet_journal_snapshots_total{plane="work"}`:
			t.count = value
		case `quartet_journal_snapshot_bytes_total{plane="work"}`:
			t.bytes = value
		case `quartet_journal_snapshot_pages_total{plane="work"}`:
			t.pages = value
		}
	})
	return t, err
}
