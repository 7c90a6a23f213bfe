package framelog

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// readingTerm is how long what a reader reported is believed. Readers try again every few seconds, and report it again.
const readingTerm = 15 * time.Second

// replicaTerm is how long a damaged replica is reported. A reader that meets it again reports it again.
const replicaTerm = 10 * time.Minute

// Damages has an error for each partition whose journal is damaged. The zero value is ready to use. It is safe for
// concurrent use.
type Damages struct {
	mu         sync.Mutex
	partitions map[string]damageReport
	// replicas that are damaged while the partition can be read from others, by partition and server
	replicas map[[2]string]damageReport
}

// damageReport is what is known of a partition.
type damageReport struct {
	loading error     // what loading it found; nil: it was loaded, or is not held here
	reading error     // what a reader found
	until   time.Time // when reading is not believed any more
	stored  error     // what the last reading of all that is stored found
}

// Report records what loading the journal of a partition found: damage, or nil. It discards what readers found
// before.
func (r *Damages) Report(partition string, damage error) {
	r.change(partition, func(d *damageReport) { d.loading, d.reading = damage, nil })
}

// ReportReading records for readingTerm that a reader of the journal found it damaged.
func (r *Damages) ReportReading(partition string, damage error) {
	r.change(partition, func(d *damageReport) { d.reading, d.until = damage, time.Now().Add(readingTerm) })
}

// ReportReplica records for replicaTerm that a server's replica of a partition's journal is damaged, while another one
// is read. The partition itself is in order.
func (r *Damages) ReportReplica(partition, server string, damage error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replicas == nil {
		r.replicas = map[[2]string]damageReport{}
	}
	r.replicas[[2]string{partition, server}] = damageReport{
		reading: fmt.Errorf(aReplica+" %s is damaged and another one is read: %w", server, damage),
		until:   time.Now().Add(replicaTerm),
	}
}

// ReportStored records what was found when all that is stored of a journal was read: that it is damaged, or nil. It
// holds until that is done again.
func (r *Damages) ReportStored(partition string, damage error) {
	r.change(partition, func(d *damageReport) { d.stored = damage })
}

// change applies change to what is known of a partition.
func (r *Damages) change(partition string, change func(*damageReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.partitions == nil {
		r.partitions = map[string]damageReport{}
	}
	damage := r.partitions[partition]
	change(&damage)
	r.partitions[partition] = damage
}

// Of returns the error of a partition, nil if nothing is known to be wrong: what loading it found, or else what a
// reader found, or else what the last reading of all that is stored found.
func (r *Damages) Of(partition string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.partitions[partition].damage()
}

// damage returns what is known to be wrong, nil if nothing is: what loading found, or else what a reader found not
// long ago, or else what the last reading of all that is stored found.
func (d damageReport) damage() error {
	switch {
	case d.loading != nil:
		return d.loading
	case d.reading != nil && time.Now().Before(d.until):
		return d.reading
	}
	return d.stored
}

// Parts of messages by which DamageRemedy tells damages apart: aReplica begins a message about a replica, and aStream
// one about a stream that is not a journal; copied and written say from what the content of that stream can be made
// again.
const (
	aReplica = "the replica on the NATS server"
	aStream  = "the stream "
	copied   = ", which is copied from the journals,"
	written  = ", which is written again from the journal,"
)

// DamageRemedy returns what a person does about the damage that an error of All describes.
func DamageRemedy(text string) string {
	if strings.HasPrefix(text, aReplica) {
		return "stop that NATS server, remove jetstream in its store, and start it: it copies everything from the " +
			"others; `quartet verify` names all damaged replicas"
	}
	if strings.HasPrefix(text, aStream) && strings.Contains(text, copied) {
		return "stop the server; `quartet repair --apply` moves the stream away, and the next start copies it again " +
			"from the journals, as far back as it keeps events"
	}
	if strings.HasPrefix(text, aStream) && strings.Contains(text, written) {
		return "stop the server; `quartet repair --apply` moves the stream away, and the next start reads the " +
			"journal, which takes longer, and writes snapshots again"
	}
	if strings.HasPrefix(text, aStream) {
		return "nothing is refused, and what cannot be read is gone: it cannot be copied again; a restore of a " +
			"backup has what was kept then"
	}
	return "stop the server; `quartet repair` says which intact copies there are, and repairs with --apply"
}

// All returns the errors, those of replicas too, in the order of their messages.
func (r *Damages) All() (damages []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reports := range []iter.Seq[damageReport]{maps.Values(r.partitions), maps.Values(r.replicas)} {
		for report := range reports {
			if damage := report.damage(); damage != nil {
				damages = append(damages, damage)
			}
		}
	}
	slices.SortFunc(damages, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return damages
}
