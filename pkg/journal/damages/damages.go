// Package damages collects what a process knows to be wrong with journals.
package damages

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// readingTerm is how long what a reader reported is believed. Readers try again every few seconds, and report it again.
const readingTerm = 15 * time.Second

// Registry has an error for each partition whose journal is damaged. The zero value is ready to use. It is safe for
// concurrent use.
type Registry struct {
	mu  sync.Mutex
	all map[string]report // by partition
}

// report is what is known of a partition.
type report struct {
	loading error // what loading it found; nil: it was loaded, or is not held here
	reading error // what a reader found
	until   time.Time
}

// Report records what loading the journal of a partition found: that it is damaged, or nil.
func (r *Registry) Report(partition string, damage error) {
	r.change(partition, func(of *report) { of.loading, of.reading = damage, nil })
}

// ReportReading records for readingTerm that a reader of the journal found it damaged.
func (r *Registry) ReportReading(partition string, damage error) {
	r.change(partition, func(of *report) { of.reading, of.until = damage, time.Now().Add(readingTerm) })
}

func (r *Registry) change(partition string, change func(*report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]report{}
	}
	of := r.all[partition]
	change(&of)
	r.all[partition] = of
}

// Of returns the error of a partition, nil if nothing is known to be wrong. What loading it found says more than what a
// reader did.
func (r *Registry) Of(partition string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[partition].damage()
}

func (of report) damage() error {
	if of.loading == nil && of.reading != nil && time.Now().Before(of.until) {
		return of.reading
	}
	return of.loading
}

// All returns the errors in the order of their messages.
func (r *Registry) All() (all []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.all {
		if damage := of.damage(); damage != nil {
			all = append(all, damage)
		}
	}
	slices.SortFunc(all, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return all
}
