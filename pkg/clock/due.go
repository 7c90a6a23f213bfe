package clock

import (
	"sync"
	"time"
)

const (
	// longestSleep bounds one sleep, because timers run on the monotonic clock, which
	// stands still while a machine is suspended, and the wall clock may step.
	longestSleep = 30 * time.Second

	// mostAtOnce bounds the keys of one call of fire, so that a restart with 100 000
	// overdue keys does not become one huge command.
	mostAtOnce = 1024
)

// Due is an index of keys by due time. Its methods are safe for concurrent use and, except
// Stop and Settle, may be called from fire.
type Due struct {
	clk  Clock
	fire func(keys []string)

	mu      sync.Mutex
	heap    []*entry
	index   map[string]*entry
	order   uint64
	firing  bool          // fire is being called, or keys were taken for it
	settled *sync.Cond    // firing ended, or nothing is due any more
	wake    chan struct{} // capacity 1: the earliest key changed
	quit    chan struct{} // not nil while started
	stopped chan struct{}
}

type entry struct {
	key   string
	at    time.Time
	order uint64 // ties fire in the order they were set
	pos   int
}

// NewDue returns an index that, once started, calls fire with due keys, earliest first and at most
// 1024 at a time, from one goroutine, and never before their time. If Set is called several times for a key
// that has not fired, the key fires once, at the last time. A key is removed from the index before
// fire is called, so fire may Set it again. Remove and Set cannot recall a key that was taken
// for a call of fire, so fire must check whether the key's record is still due.
func NewDue(clk Clock, fire func(keys []string)) *Due {
	d := &Due{clk: clk, fire: fire, index: map[string]*entry{}, wake: make(chan struct{}, 1)}
	d.settled = sync.NewCond(&d.mu)
	return d
}

// Settle waits until no key is due and no call of fire is running, so that a test can
// move the clock and then check the effects. It returns immediately while d is stopped.
func (d *Due) Settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.quit != nil && (d.firing || len(d.heap) > 0 && !d.heap[0].at.After(d.clk.Now())) {
		d.settled.Wait()
	}
}

// Set makes key due at at. It replaces an earlier time of this key.
func (d *Due) Set(key string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.order++
	e, known := d.index[key]
	if !known {
		e = &entry{key: key, pos: len(d.heap)}
		d.index[key] = e
		d.heap = append(d.heap, e)
	}
	e.at, e.order = at, d.order
	d.fix(e.pos)
	if d.heap[0] == e {
		d.poke()
	}
}

// Remove removes key, if it is there.
func (d *Due) Remove(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok := d.index[key]; ok {
		d.drop(e)
	}
}

// At returns when key is due, and false if it is not in the index.
func (d *Due) At(key string) (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.index[key]
	if !ok {
		return time.Time{}, false
	}
	return e.at, true
}

// Len returns the number of keys that have not fired.
func (d *Due) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.heap)
}

// Start starts firing. It is idempotent.
func (d *Due) Start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.quit != nil {
		return
	}
	d.quit, d.stopped = make(chan struct{}), make(chan struct{})
	go d.run(d.quit, d.stopped)
}

// Stop stops firing and waits for a running fire to return, so fire itself must not call it.
// The keys stay, and Start may be called again.
func (d *Due) Stop() {
	d.mu.Lock()
	quit, stopped := d.quit, d.stopped
	d.quit, d.stopped = nil, nil
	d.settled.Broadcast()
	d.mu.Unlock()
	if quit != nil {
		close(quit)
		<-stopped
	}
}

func (d *Due) run(quit, stopped chan struct{}) {
	defer close(stopped)
	for {
		select {
		case <-quit:
			return
		default:
		}
		now := d.clk.Now()
		keys, next, pending := d.take(now)
		if len(keys) > 0 {
			d.fire(keys)
			continue
		}
		var alarm <-chan time.Time
		var timer Timer
		if pending {
			// Sub saturates beyond 292 years, so times are compared instead of
			// durations.
			if limit := now.Add(longestSleep); next.After(limit) {
				next = limit
			}
			timer = d.clk.TimerAt(next)
			alarm = timer.C()
		}
		select {
		case <-quit:
		case <-d.wake:
		case <-alarm:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// take removes at most mostAtOnce keys that are due at now, and returns them; firing is set while there
// are any. If there are none, pending says whether the index has another key, and next when that is due.
func (d *Due) take(now time.Time) (keys []string, next time.Time, pending bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if d.firing = len(keys) > 0; !d.firing {
			d.settled.Broadcast()
		}
	}()
	for len(d.heap) > 0 && len(keys) < mostAtOnce {
		first := d.heap[0]
		if first.at.After(now) {
			return keys, first.at, true
		}
		d.drop(first)
		keys = append(keys, first.key)
	}
	return keys, time.Time{}, false
}

func (d *Due) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// The heap is written out rather than built on container/heap, whose interface calls take
// twice the time at 100 000 keys; drop needs the position anyway.

func (d *Due) less(i, j int) bool {
	a, b := d.heap[i], d.heap[j]
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return a.order < b.order
}

func (d *Due) swap(i, j int) {
	d.heap[i], d.heap[j] = d.heap[j], d.heap[i]
	d.heap[i].pos, d.heap[j].pos = i, j
}

func (d *Due) fix(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !d.less(i, parent) {
			break
		}
		d.swap(i, parent)
		i = parent
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(d.heap); child++ {
			if d.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		d.swap(i, least)
		i = least
	}
}

func (d *Due) drop(e *entry) {
	delete(d.index, e.key)
	pos, last := e.pos, len(d.heap)-1
	d.swap(pos, last)
	d.heap[last] = nil
	d.heap = d.heap[:last]
	if pos < last {
		d.fix(pos)
	}
}
