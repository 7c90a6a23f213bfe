package repair

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/natsd/salvage"
)

// Loss is what is known of the events that a journal does not have, and of which no copy continues it.
type Loss struct {
	First, Last uint64 // wal_seqs; Last is as far as anybody recorded
	// Known is how many of these events some place has, without those of the journal itself.
	Known int
	// Types, Agents, WorkItems and Sessions are what these are about, each once, in order. Sessions own boards.
	Types, Agents, WorkItems, Sessions []string
	// File has the known events, one JSON object in a line; "" if none is known or nothing was applied.
	File string

	events []event
}

// lossOf collects what is known of the events behind the end of a chain.
func lossOf(p partition, n int, c chain, k *known, last uint64) *Loss {
	l := &Loss{First: c.end.WalSeq + 1, Last: max(last, c.end.WalSeq)}
	byWalSeq := map[uint64]event{}
	for _, f := range c.left {
		if first := f.frame.Link.First; first > c.end.WalSeq {
			for i, line := range framelog.SplitLines(f.frame.Body) {
				byWalSeq[first+uint64(i)] = event{first + uint64(i), line, placeNames[f.place]}
			}
		}
	}
	for _, ev := range k.events[p.plane] {
		if _, has := byWalSeq[ev.walSeq]; !has && ev.walSeq > c.end.WalSeq && ev.walSeq <= l.Last &&
			ofPartition(ev.line, p.number, n) {
			byWalSeq[ev.walSeq] = ev
		}
	}
	types, agents, items, sessions := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, ev := range byWalSeq {
		about := envelopeOf(ev.line)
		if internal[about.Type] {
			continue
		}
		l.events = append(l.events, ev)
		for value, set := range map[*string]map[string]bool{
			&about.Type: types, &about.Agent: agents,
			&about.WorkItem: items, &about.Session: sessions,
		} {
			if *value != "" {
				set[*value] = true
			}
		}
	}
	slices.SortFunc(l.events, func(a, b event) int { return cmp.Compare(a.walSeq, b.walSeq) })
	l.Known = len(l.events)
	l.Types, l.Agents, l.WorkItems, l.Sessions = sorted(types), sorted(agents), sorted(items), sorted(sessions)
	return l
}

// internal are the events of the journal itself, whose loss concerns nobody.
var internal = map[string]bool{
	"partition_opened": true, "source_consumed": true, "request_answered": true,
	"incarnation_began": true, "snapshot_taken": true,
}

// envelope is what a line says that it is about.
type envelope struct {
	Type      string `json:"event_type"`
	Namespace string `json:"namespace"`
	Agent     string `json:"agent_id"`
	WorkItem  string `json:"work_item_id"`
	Session   string `json:"session_id"`
}

// envelopeOf returns what can be read of a line's envelope.
func envelopeOf(line []byte) (e envelope) {
	if json.Unmarshal(line, &e) == nil {
		return e
	}
	for name, to := range map[string]*string{
		"event_type": &e.Type, "namespace": &e.Namespace, "agent_id": &e.Agent,
		"work_item_id": &e.WorkItem, "session_id": &e.Session,
	} {
		*to, _ = framelog.LineField(line, name)
	}
	return e
}

// ofPartition reports whether an event is in a partition, by its owner.
func ofPartition(line []byte, number, n int) bool {
	e := envelopeOf(line)
	return n <= 1 || journal.PartitionOf(e.Namespace, cmp.Or(e.Session, e.Agent), n) == number
}

// sorted returns the members of a set in order.
func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// write writes the known events to a file in dir, for whoever wants to enter them again.
func (l *Loss) write(dir string, p partition, stamp string) error {
	if len(l.events) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for _, ev := range l.events {
		if err := enc.Encode(struct {
			From   string `json:"from"`
			WalSeq uint64 `json:"wal_seq"`
			Event  string `json:"event"`
		}{ev.from, ev.walSeq, string(ev.line)}); err != nil {
			return err
		}
	}
	l.File = filepath.Join(dir, fmt.Sprintf("%s-%d-%s.jsonl", p.plane, p.number, stamp))
	if err := salvage.Write(l.File, out.Bytes()); err != nil {
		return err
	}
	return salvage.SyncDir(dir)
}

// lastKnown returns the highest wal_seq that any place has of a partition.
func lastKnown(p partition, n int, c chain, k *known, witnessed framelog.End) uint64 {
	last := max(k.walSeq[p], witnessed.WalSeq, c.end.WalSeq)
	for _, f := range c.left {
		last = max(last, f.lastWalSeq())
	}
	for _, ev := range k.events[p.plane] {
		if ofPartition(ev.line, p.number, n) {
			last = max(last, ev.walSeq)
		}
	}
	return last
}
