package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/tests/sim/engine"
)

// published compares the stream EVENTS with the journals: who reads the stream in order and leaves out what it has read
// before gets each event of a journal, in the order of the journal (SPEC X10). Nothing is published that is not stored.
type published struct {
	mu     sync.Mutex
	stored map[string][]string       // ids of the events of a plane, in order
	frames map[string]map[uint64]int // how many of them there are up to each frame
	number map[string]int            // by id: its number among those of its plane, from 0
	next   map[string]int            // how many of a plane were published without a gap
	gone   map[string]bool           // by id: events of an agent that is erased, which may be missing
	wrong  error
	over   bool // nothing is compared any more
}

func newPublished() *published {
	return &published{
		stored: map[string][]string{}, frames: map[string]map[uint64]int{}, number: map[string]int{},
		next: map[string]int{}, gone: map[string]bool{},
	}
}

// event notes an event that a plane has stored.
func (p *published) event(plane string, ev *journal.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number[plane+" "+ev.ID] = len(p.stored[plane])
	p.stored[plane] = append(p.stored[plane], ev.ID)
	if ev.AgentID == goneAgent {
		p.gone[plane+" "+ev.ID] = true
	}
}

// frame notes the end of a frame.
func (p *published) frame(plane string, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frames[plane] == nil {
		p.frames[plane] = map[uint64]int{}
	}
	p.frames[plane][seq] = len(p.stored[plane])
}

// skip passes over the next events of a plane that may be missing, up to the one with a number.
func (p *published) skip(plane string, n int) {
	for p.next[plane] < n && p.gone[plane+" "+p.stored[plane][p.next[plane]]] {
		p.next[plane]++
	}
}

// message reads a message that the stream has stored.
func (p *published) message(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if err := p.read(m); err != nil && p.wrong == nil {
		p.wrong = err
	}
}

// stop ends comparing.
func (p *published) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

func (p *published) read(m *nats.Msg) error {
	if of, ok := strings.CutPrefix(m.Subject, bus.PositionPrefix); ok {
		plane, _, _ := strings.Cut(of, ".")
		end, err := bus.PositionOf(m.Header)
		if err != nil {
			return err
		}
		n, ok := p.frames[plane][end.Seq]
		p.skip(plane, n)
		if !ok || n > p.next[plane] {
			return fmt.Errorf("EVENTS has a position behind frame %d of %s, and %d of its events", end.Seq, plane,
				p.next[plane])
		}
		return nil
	}
	var ev struct{ ID, Source string }
	if err := json.Unmarshal(m.Data, &ev); err != nil {
		return err
	}
	plane := ev.Source[strings.LastIndexByte(ev.Source, '/')+1:]
	n, ok := p.number[plane+" "+ev.ID]
	p.skip(plane, n)
	switch {
	case !ok:
		return fmt.Errorf("event %s of %s is published and not stored", ev.ID, plane)
	case n > p.next[plane]:
		return fmt.Errorf("event %s of %s is the %d. of its journal, and is published after %d", ev.ID, plane, n+1,
			p.next[plane])
	}
	p.next[plane] = max(p.next[plane], n+1)
	return nil
}

// lost reads the stream again after it has lost its end.
func (p *published) lost(all []*nats.Msg) {
	p.mu.Lock()
	clear(p.next)
	p.mu.Unlock()
	for _, m := range all {
		p.message(m)
	}
}

// check returns the first violation.
func (p *published) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wrong
}

// publish begins to copy the journal of a plane to EVENTS, as a process does for what it serves.
func (w *world) publish(l *life) (*bus.Publisher, error) {
	name := l.tag + "/events"
	log := archive.NewLog(&engine.Log{Queue: w.q, Of: l.proc, Name: name, Inner: w.logs[l.name], Disk: &w.disk},
		w.archives[l.name], framelog.PartitionName(l.name, 0))
	return bus.Start(l.ctx, bus.Config{
		Target: &engine.EventsTarget{Queue: w.q, Of: l.proc, Name: name, Events: w.events},
		Source: &engine.Source{
			Source: l.feeds.Source(journal.NewSource(l.name, 0, log)), Queue: w.q, Of: l.proc,
			Edge: l.name + ">" + name,
		},
	})
}

// loseEvents has EVENTS lose its newest n messages.
func (w *world) loseEvents(n int) {
	w.events.Lose(n)
	w.books.copied.lost(w.events.Messages())
}

// atRest checks that everything is published.
func (p *published) atRest() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, plane := range slices.Sorted(slices.Values(journals)) {
		n := len(p.stored[plane])
		if p.skip(plane, n); p.next[plane] != n {
			return fmt.Errorf("%d events of %s are published of %d", p.next[plane], plane, n)
		}
	}
	return nil
}
