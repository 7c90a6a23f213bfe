package journal

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/meter"
)

// counters are a partition's metrics; nil counts nothing. byType belongs to the caller of Committed.
type counters struct {
	seconds, bytes, lines prometheus.Observer
	appends               map[string]prometheus.Counter // by outcome
	plane                 string
	events                *prometheus.CounterVec
	byType                map[string]prometheus.Counter // cached counters of events
	loads                 prometheus.Observer

	snapshots, snapshotPages, snapshotBytes prometheus.Counter
	snapshotSeconds                         prometheus.Observer
}

// newCounters returns the counters of a plane. It registers their metrics with reg, or uses those that an
// earlier call registered. It returns nil if reg is nil; a nil *counters counts nothing.
func newCounters(reg prometheus.Registerer, plane string) *counters {
	if reg == nil {
		return nil
	}
	g := &counters{
		seconds: meter.Histogram(reg, "quartet_journal_append_seconds",
			"Time from the first attempt to write a frame until it was on disk.", meter.Disk, "plane").
			WithLabelValues(plane),
		bytes: meter.Histogram(reg, "quartet_journal_frame_bytes", "Size of the frames written.", meter.Bytes,
			"plane").WithLabelValues(plane),
		lines: meter.Histogram(reg, "quartet_journal_frame_events", "Number of events in each frame written, that "+
			"is, for each fsync.", meter.Many, "plane").WithLabelValues(plane),
		loads: meter.Histogram(reg, "quartet_journal_load_seconds", "Time to load a partition, at the start or "+
			"after its lease was acquired again.", meter.Work, "plane").WithLabelValues(plane),
		plane: plane, events: meter.Counter(reg, "quartet_journal_events_total", "Events on disk, by type.", "plane",
			"event_type"),
		snapshots: meter.Counter(reg, "quartet_journal_snapshots_total", "Snapshots written.", "plane").
			WithLabelValues(plane),
		snapshotPages: meter.Counter(reg, "quartet_journal_snapshot_pages_total",
			"Pages of owners in the snapshots written.", "plane").WithLabelValues(plane),
		snapshotBytes: meter.Counter(reg, "quartet_journal_snapshot_bytes_total", "Bytes of the snapshots written.",
			"plane").WithLabelValues(plane),
		snapshotSeconds: meter.Histogram(reg, "quartet_journal_snapshot_seconds",
			"Time to write a snapshot; commands continue meanwhile.", meter.Work, "plane").WithLabelValues(plane),
		byType: map[string]prometheus.Counter{}, appends: map[string]prometheus.Counter{},
	}
	appends := meter.Counter(reg, "quartet_journal_appends_total", "Attempts to write a frame by outcome: ok, "+
		"refused, busy (tried again), overtaken by another writer, or unknown.", "plane", "outcome")
	for _, outcome := range []string{"ok", "refused", "busy", "overtaken", "unknown"} {
		g.appends[outcome] = appends.WithLabelValues(plane, outcome)
	}
	return g
}

// Appended counts one attempt to append a frame, by its outcome.
func (g *counters) Appended(err error) {
	if g == nil {
		return
	}
	outcome := "unknown"
	switch {
	case err == nil:
		outcome = "ok"
	case errors.Is(err, framelog.ErrRefused):
		outcome = "refused"
	case errors.Is(err, framelog.ErrBusy):
		outcome = "busy"
	case errors.Is(err, framelog.ErrWrongSequence):
		outcome = "overtaken"
	}
	g.appends[outcome].Inc()
}

// Loaded counts a completed load.
func (g *counters) Loaded(took time.Duration) {
	if g != nil {
		g.loads.Observe(took.Seconds())
	}
}

// Written counts a frame of size bytes that was stored.
func (g *counters) Written(size int, took time.Duration) {
	if g != nil {
		g.seconds.Observe(took.Seconds())
		g.bytes.Observe(float64(size))
	}
}

// Committed counts the n events of a frame, of which typeOf returns the types. Only one goroutine may call it.
func (g *counters) Committed(n int, typeOf func(i int) string) {
	if g == nil {
		return
	}
	g.lines.Observe(float64(n))
	for i := 0; i < n; {
		typ, same := typeOf(i), 1 // large frames often have many events of one type in a row
		for i+same < n && typeOf(i+same) == typ {
			same++
		}
		c := g.byType[typ]
		if c == nil {
			c = g.events.WithLabelValues(g.plane, typ)
			g.byType[typ] = c
		}
		c.Add(float64(same))
		i += same
	}
}

// Snapshot counts a snapshot that was written, of so many pages and bytes.
func (g *counters) Snapshot(pages int, bytes int64, took time.Duration) {
	if g != nil {
		g.snapshots.Inc()
		g.snapshotPages.Add(float64(pages))
		g.snapshotBytes.Add(float64(bytes))
		g.snapshotSeconds.Observe(took.Seconds())
	}
}
