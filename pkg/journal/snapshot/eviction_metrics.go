package snapshot

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/meter"
)

// EvictionMetrics are the metrics of the owners of a plane's partitions. A nil *EvictionMetrics sets nothing. Its
// methods are not called concurrently.
type EvictionMetrics struct {
	plane                            string
	resident, evicted, bytes, failed *prometheus.GaugeVec
	reads                            *prometheus.CounterVec
	counted                          map[string]int64 // reads, by partition
}

// NewEvictionMetrics registers the metrics with reg, or uses those that an earlier call registered. It returns nil if
// reg is nil.
func NewEvictionMetrics(reg prometheus.Registerer, plane string) *EvictionMetrics {
	if reg == nil {
		return nil
	}
	return &EvictionMetrics{
		plane: plane, counted: map[string]int64{},
		resident: meter.Gauge(reg, "quartet_owners_resident", "Agents (of the board plane: boards) of a partition "+
			"whose state is in memory.", "plane", "partition"),
		evicted: meter.Gauge(reg, "quartet_owners_evicted", "Agents (of the board plane: boards) of a partition "+
			"whose state is in the file of those that are not used.", "plane", "partition"),
		bytes: meter.Gauge(reg, "quartet_owners_file_bytes", "Size of the file of a partition's agents that are "+
			"not used.", "plane", "partition"),
		failed: meter.Gauge(reg, "quartet_eviction_failed", "1 while agents that are not used stay in memory "+
			"because their file cannot be written, or could not be read; 0 otherwise.", "plane", "partition"),
		reads: meter.Counter(reg, "quartet_owners_evicted_reads_total",
			"Reads of agents from the file of those that are not used.", "plane", "partition"),
	}
}

// Set sets the metrics of a partition.
func (m *EvictionMetrics) Set(partition int, c OwnerCounts) {
	if m == nil {
		return
	}
	p := strconv.Itoa(partition)
	m.resident.WithLabelValues(m.plane, p).Set(float64(c.Resident))
	m.evicted.WithLabelValues(m.plane, p).Set(float64(c.Evicted))
	m.bytes.WithLabelValues(m.plane, p).Set(float64(c.FileBytes))
	failed := 0.0
	if c.Failed {
		failed = 1
	}
	m.failed.WithLabelValues(m.plane, p).Set(failed)
	if c.Reads < m.counted[p] { // the partition was loaded again
		m.counted[p] = 0
	}
	m.reads.WithLabelValues(m.plane, p).Add(float64(c.Reads - m.counted[p]))
	m.counted[p] = c.Reads
}

// Remove removes the gauges of a partition that this process holds no more.
func (m *EvictionMetrics) Remove(partition int) {
	if m == nil {
		return
	}
	for _, g := range []*prometheus.GaugeVec{m.resident, m.evicted, m.bytes, m.failed} {
		g.DeleteLabelValues(m.plane, strconv.Itoa(partition))
	}
}
