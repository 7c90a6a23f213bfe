package event

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
)

// Opened returns the payload of partition_opened.
func Opened(generation uint64) *structpb.Struct {
	return &structpb.Struct{
		Fields: map[string]*structpb.Value{"generation": structpb.NewNumberValue(float64(generation))},
	}
}

// Consumed returns the payload of source_consumed, which says how far the journal of a partition of another plane was
// consumed: up to the frame at seq, of which the first line lines were consumed, or all if line is 0. consumed is
// End.String of the end of that log behind the last frame that was consumed completely.
func Consumed(plane string, partition int, consumed string, seq uint64, line int) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"plane":     structpb.NewStringValue(plane),
		"partition": structpb.NewNumberValue(float64(partition)),
		"sequence":  structpb.NewNumberValue(float64(seq)),
		"consumed":  structpb.NewStringValue(consumed),
	}
	if line > 0 {
		fields["line"] = structpb.NewNumberValue(float64(line))
	}
	return &structpb.Struct{Fields: fields}
}

// Gone returns the Event that stands for one that was removed; its Removed returns true.
func Gone(walSeq uint64) *Event {
	return &Event{WalSeq: walSeq, Type: TypeLineErased, Payload: &structpb.Struct{}}
}

// Removed reports whether ev stands for an event that the journal no longer has: its agent was erased, or it was
// older than history is kept. Then only the WalSeq of ev has a meaning.
func (ev *Event) Removed() bool { return ev.Type == TypeLineErased }

// Retaining is a state that says what it needs of its journal, so that the rest can be removed once it is old.
type Retaining interface {
	// Needs reports whether an old event must be kept: because the state refers to it, or because a reader of the
	// journal from its beginning would come to another result without it. before is the time before which events of its
	// namespace are old. If Needs returns false for an event, it must do so later too, unless before moves back: a
	// state may come to refer to new events only. It is called with the read lock held, for each old event, and must be
	// quick.
	Needs(ev *Event, before time.Time) bool
}

// In returns the event with a wal_seq among the lines of its frame, whose wal_seqs have no gaps. It is an error if
// the frame does not have the wal_seq, or if its line is damaged; damaged lines beside it do not matter.
func In(lines [][]byte, walSeq uint64, reg *Registry) (*Event, error) {
	if len(lines) == 0 {
		return nil, fmt.Errorf("it is empty, wal_seq %d should be in it", walSeq)
	}
	first, err := lineSeq(lines[0])
	for i := 1; err != nil && i < len(lines); i++ { // a damaged line has no wal_seq
		var later uint64
		if later, err = lineSeq(lines[i]); err == nil {
			first = later - uint64(i)
		}
	}
	if err != nil {
		return nil, err
	}
	index := walSeq - first
	if index >= uint64(len(lines)) { // also if walSeq is before first, since then the difference wraps around
		return nil, fmt.Errorf("it holds %d events from wal_seq %d, not %d", len(lines), first, walSeq)
	}
	raw, err := ParseLine(lines[index])
	if err != nil {
		return nil, err
	}
	return raw.Decode(reg)
}

// lineSeq returns a line's wal_seq. The fast path reads only the start, since it is called for the first line
// of the frame once for each event, and a line may have megabytes.
func lineSeq(line []byte) (uint64, error) {
	const first = `{"wal_seq":`
	if rest, ok := bytes.CutPrefix(line, []byte(first)); ok {
		if end := bytes.IndexByte(rest, ','); end > 0 {
			return strconv.ParseUint(string(rest[:end]), 10, 64)
		}
	}
	raw, err := ParseLine(line)
	if err != nil {
		return 0, err
	}
	return raw.WalSeq, nil
}

// Range returns count events, from the wal_seq first on, which must all be among the lines of one frame.
func Range(lines [][]byte, first uint64, count int, reg *Registry) ([]*Event, error) {
	events := make([]*Event, count)
	for i := range events {
		var err error
		if events[i], err = In(lines, first+uint64(i), reg); err != nil {
			return nil, err
		}
	}
	return events, nil
}
