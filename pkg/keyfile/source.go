package keyfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// PollPeriod is how often a process reads the file again.
const PollPeriod = time.Second

// Source provides the current keys of a file. Ring, OnChange, Changed and Set are safe for concurrent use.
// Only one goroutine may call Poll at a time.
type Source struct {
	path string
	ring atomic.Pointer[Ring]

	mu        sync.Mutex
	raw       []byte
	observers []func()
	changed   chan struct{}
}

// Open reads a key file, or creates it if there is none, and returns a Source of its keys. The caller
// must call Poll every PollPeriod, so that the Source notices changes of the file.
func Open(path string, now time.Time) (*Source, error) {
	if _, err := LoadOrCreate(path, now); err != nil {
		return nil, err
	}
	raw, err := read(path)
	if err != nil {
		return nil, err
	}
	r, err := parseFile(path, raw)
	if err != nil {
		return nil, err
	}
	s := Fixed(r)
	s.path, s.raw = path, raw
	return s, nil
}

// Fixed returns a Source of keys without a file.
func Fixed(r Ring) *Source {
	s := &Source{changed: make(chan struct{})}
	s.ring.Store(&r)
	return s
}

// Ring returns the keys.
func (s *Source) Ring() Ring { return *s.ring.Load() }

// OnChange registers f to be called after each change of the keys, by the goroutine that calls Set or
// Poll and before that returns. f must not block. It cannot be unregistered.
func (s *Source) OnChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = append(s.observers, f)
}

// Changed returns a channel that is closed at the next change of the keys.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Set replaces the keys in memory, not in the file, closes the channel that Changed returned, and calls the
// observers. The caller must not call Set and Poll concurrently.
func (s *Source) Set(r Ring) {
	s.ring.Store(&r)
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	observers := slices.Clone(s.observers)
	s.mu.Unlock()
	for _, f := range observers {
		f()
	}
}

// Poll reads the file again. If its content differs from what Open or Poll accepted last, Poll calls Set with its
// keys and returns true. If it returns an error, the keys of the Source stay as they are. It returns an error for a
// file with none of the known keys, since that belongs to another installation or is a mistake.
func (s *Source) Poll() (changed bool, err error) {
	raw, err := read(s.path)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	same := bytes.Equal(raw, s.raw)
	s.mu.Unlock()
	if same {
		return false, nil
	}
	next, err := parseFile(s.path, raw)
	if err != nil {
		return false, err
	}
	known := s.Ring()
	if !slices.ContainsFunc(next.IDs(), func(id string) bool { _, ok := known.Find(id); return ok }) {
		return false, fmt.Errorf("key file %s: %w", s.path, errOtherInstallation)
	}
	s.mu.Lock()
	s.raw = raw
	s.mu.Unlock()
	s.Set(next)
	return true, nil
}

var errOtherInstallation = errors.New("it has none of the keys that this process knows; put the previous file back, " +
	"or restart the process if the change is intended")
