package repair

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"quartet/pkg/bus"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/natsd/blockfile"
)

// partition is a partition of a plane.
type partition struct {
	plane  string
	number int
}

func (p partition) String() string { return framelog.PartitionName(p.plane, p.number) }

// known is what other places recorded of the journals: how far they read each.
type known struct {
	seq    map[partition]uint64 // highest sequence number
	walSeq map[partition]uint64 // highest wal_seq
	events map[string][]event   // what EVENTS has, by plane, in the order of the stream
}

// event is a line of a journal that a place has.
type event struct {
	walSeq uint64
	line   []byte
	from   string // the place
}

// newKnown returns a known in which nothing is recorded yet.
func newKnown() *known {
	return &known{seq: map[partition]uint64{}, walSeq: map[partition]uint64{}, events: map[string][]event{}}
}

// saw records that somebody read a partition up to an end.
func (k *known) saw(p partition, end framelog.End) {
	k.seq[p] = max(k.seq[p], end.Seq)
	k.walSeq[p] = max(k.walSeq[p], end.WalSeq)
}

// newest returns the highest sequence number that is known of any of the partitions that a plane has: they may have
// begun in one stream.
func (k *known) newest(plane string, partitions int) (seq uint64) {
	for i := range partitions {
		seq = max(seq, k.seq[partition{plane, i}])
	}
	return seq
}

// readPositions records the positions that the frames of a journal have of others.
func (k *known) readPositions(s *stream) {
	for _, copies := range s.copies {
		for _, c := range copies {
			for _, line := range framelog.SplitLines(c.frame.Body) {
				if kind, _ := framelog.TypeOfLine(line); kind != "source_consumed" {
					continue
				}
				var ev struct {
					Payload struct {
						Plane     string
						Partition int
						Sequence  uint64
						Consumed  string
					}
				}
				if json.Unmarshal(line, &ev) != nil {
					continue // damaged; another copy may be intact
				}
				p := partition{ev.Payload.Plane, ev.Payload.Partition}
				k.saw(p, framelog.End{Seq: ev.Payload.Sequence})
				if end, err := framelog.ParseEnd(ev.Payload.Consumed); err == nil {
					k.saw(p, end)
				}
			}
		}
	}
}

// readEvents records what EVENTS has: the positions up to which journals were copied to it, and the copies.
func (k *known) readEvents(store, account string) error {
	files, err := blockfile.Files(blockfile.Messages(store, account, bus.Stream))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := readBlock(file)
		if err != nil {
			return err
		}
		// What cannot be read of EVENTS is copied again from the journals.
		if _, err := blockfile.Read(bus.Stream, file.Index, b, []string{bus.EventPrefix, bus.PositionPrefix},
			func(r blockfile.Record) error {
				k.readEvent(r)
				return nil
			}); err != nil {
			return err
		}
	}
	return nil
}

// readEvent records one message of EVENTS.
func (k *known) readEvent(r blockfile.Record) {
	if of, found := strings.CutPrefix(r.Subject, bus.PositionPrefix); found {
		plane, number, _ := strings.Cut(of, ".")
		i, err := strconv.Atoi(number)
		h, headerErr := nats.DecodeHeadersMsg(r.Header)
		if err != nil || headerErr != nil {
			return
		}
		if end, err := bus.PositionOf(h); err == nil {
			k.saw(partition{plane, i}, end)
		}
		return
	}
	var ev struct{ Data json.RawMessage }
	if !r.Message() || !strings.HasPrefix(r.Subject, bus.EventPrefix) ||
		strings.HasSuffix(r.Subject, "."+bus.ReadinessChanged) || json.Unmarshal(r.Body, &ev) != nil {
		return
	}
	var line struct {
		WalSeq uint64 `json:"wal_seq"`
		Plane  string
	}
	if json.Unmarshal(ev.Data, &line) != nil {
		return
	}
	k.events[line.Plane] = append(k.events[line.Plane], event{line.WalSeq, bytes.Clone(ev.Data), "EVENTS"})
}
