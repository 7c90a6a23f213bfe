// Package damages collects what a process knows to be wrong with journals.
package damages

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Registry has an error for each partition whose journal is damaged. The zero value is ready to use. It is safe for
// concurrent use.
type Registry struct {
	mu  sync.Mutex
	all map[string]error
}

// Report records what loading the journal of a partition found: that it is damaged, or nil.
func (r *Registry) Report(partition string, damage error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if damage == nil {
		delete(r.all, partition)
		return
	}
	r.set(partition, damage)
}

// ReportReading records that a reader of the journal found it damaged. What loading it found says more.
func (r *Registry) ReportReading(partition string, damage error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[partition] == nil {
		r.set(partition, damage)
	}
}

// set sets the error of a partition. r.mu must be held.
func (r *Registry) set(partition string, damage error) {
	if r.all == nil {
		r.all = map[string]error{}
	}
	r.all[partition] = damage
}

// Of returns the error of a partition, nil if nothing is known to be wrong.
func (r *Registry) Of(partition string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[partition]
}

// All returns the errors in the order of their messages.
func (r *Registry) All() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.all), func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
}
