package derived

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"quartet/pkg/bus"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
	taskoutput "quartet/services/task/output"
)

// Stream is a stream that is not a journal.
type Stream struct {
	Name string
	// Again says that its messages can be made again from the journals. If false, there is no other copy of them.
	Again bool
	// Snapshots says that it has the snapshots of a partition, and that its messages are written again from the
	// journal. Where they cannot be read, a load reads an older snapshot or the journal.
	Snapshots bool
	// gapless says that messages are removed from its beginning only, so that one between two others is missing.
	gapless bool
	// readable returns what is wrong with a message.
	readable func(subject string, h nats.Header, body []byte) error
}

// Streams are those whose names do not depend on the partitions: all but snapshots.
var Streams = []Stream{
	{Name: bus.Stream, Again: true, gapless: true, readable: readableEvent},
	{Name: taskoutput.StreamName, readable: func(_ string, h nats.Header, _ []byte) error {
		return taskoutput.Readable(h)
	}},
}

// readableEvent returns an error if a message of EVENTS is neither an event nor a position.
func readableEvent(subject string, h nats.Header, body []byte) error {
	if strings.HasPrefix(subject, bus.PositionPrefix) {
		_, err := bus.PositionOf(h)
		return err
	}
	if !json.Valid(body) {
		return errors.New("it is no JSON")
	}
	return nil
}

// Report is what was found in a stream.
type Report struct {
	Stream
	Server      string // the NATS server whose replica it is; "": there is one copy
	Messages    uint64
	First, Last uint64   // sequence numbers; 0: it has no messages
	Damage      []string // in the order of the stream
}

// snapshots returns the streams of snapshots with some names.
func snapshots(names []string) (all []Stream) {
	for _, name := range names {
		all = append(all, Stream{
			Name: name, Again: true, Snapshots: true,
			readable: func(string, nats.Header, []byte) error { return nil },
		})
	}
	return all
}

// Stored returns Streams and the streams of snapshots that are in the store of an embedded server.
func Stored(store, account string) ([]Stream, error) {
	names, err := blockfile.Streams(store, account, jetlog.SnapshotPrefix)
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(Streams), snapshots(names)...), nil
}

// The kinds of streams in the text of an error. damages.Remedy looks for these words.
const (
	written = ", which is written again from the journal,"
	again   = ", which is copied from the journals,"
	noOther = ", of which there is no other copy,"
)

// Err returns an error that describes the damage, or nil if there is none.
func (r Report) Err() error {
	if len(r.Damage) == 0 {
		return nil
	}
	kind, more := noOther, ""
	switch {
	case r.Snapshots:
		kind = written
	case r.Again:
		kind = again
	}
	if n := len(r.Damage) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return fmt.Errorf("the stream %s%s is damaged: %s%s", r.Name, kind, r.Damage[0], more)
}

// Remedy says what becomes of a damaged stream, and what a person does about it.
func (r Report) Remedy() string {
	switch {
	case r.Server != "":
		return "if another server's replica is in order, stop this NATS server, remove jetstream in its store, and " +
			"start it: it copies everything from the others" + map[bool]string{
			true: "; otherwise delete the stream " + r.Name + " and start the processes again: it is copied again " +
				"from the journals" + r.extent(),
		}[r.Again]
	case r.Again:
		return "`quartet repair --apply` moves it away, and the next start copies it again from the journals" +
			r.extent()
	}
	return "what cannot be read is gone and cannot be copied again; nothing is refused, and the rest is shown"
}

// extent says how much of a stream is copied again.
func (r Report) extent() string {
	if r.Snapshots {
		return "; until then a start reads an older snapshot, or the whole journal, which takes longer"
	}
	return ", as far back as it keeps events"
}

// Reader reads the blocks of a stream, which the caller must pass in order. To read a block again, the caller assigns
// a copy of the Reader that it made before the block.
type Reader struct {
	of     Report
	before uint64 // sequence number of the message read last; 0: of nothing before is known
	torn   string // why the end of the block before cannot be read; "": it can
}

// NewReader returns a Reader of a stream that was not read.
func NewReader(s Stream) Reader { return Reader{of: Report{Stream: s}} }

// Report returns what was found.
func (r *Reader) Report() Report { return r.of }

// Skip passes over a block that was removed with the beginning of the stream before it could be read.
func (r *Reader) Skip() { r.before, r.torn = 0, "" }

// Block reads a block, and reports whether it is damaged. newest says that it is the last one: what cannot be read at
// its end is being written, or was not on the disk when the machine lost power.
func (r *Reader) Block(file blockfile.File, b []byte, newest bool) (damaged bool, err error) {
	causes, found := map[uint64]string{}, len(r.of.Damage)
	gaps, err := blockfile.Read(r.of.Name, file.Index, b, []string{"quartet."}, func(blockfile.Record) error {
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, g := range gaps {
		causes[g.Before] = fmt.Sprintf("%s, bytes %d to %d: %v", file.Path, g.From, g.To, g.Cause)
	}
	if _, err = blockfile.Read(r.of.Name, file.Index, b, []string{"quartet."}, func(rec blockfile.Record) error {
		if rec.Deletion {
			return nil // it has the number of another one
		}
		cause := causes[rec.Seq]
		if cause == "" {
			cause, r.torn = r.torn, ""
		}
		r.missing(rec.Seq, cause)
		r.before = max(r.before, rec.Seq)
		if rec.Message() {
			r.message(rec)
		}
		return nil
	}); err != nil {
		return false, err
	}
	if cause := causes[0]; cause != "" && !newest {
		r.torn = cause
	}
	return len(r.of.Damage) > found || r.torn != "", nil
}

// message counts a message and reads it.
func (r *Reader) message(rec blockfile.Record) {
	h, err := nats.Header{}, error(nil)
	if len(rec.Header) > 0 {
		h, err = nats.DecodeHeadersMsg(rec.Header)
	}
	if err == nil {
		err = r.of.readable(rec.Subject, h, rec.Body)
	}
	r.of.add(rec.Seq, err)
}

// add counts a message. err is why it cannot be read; nil: it can.
func (r *Report) add(seq uint64, err error) {
	if r.First == 0 {
		r.First = seq
	}
	r.Messages, r.Last = r.Messages+1, max(r.Last, seq)
	if err != nil {
		r.Damage = append(r.Damage, fmt.Sprintf("message %d cannot be read: %v", seq, err))
	}
}

// missing reports the messages between the one that was read last and the next one, at seq, if they are missing. cause
// says why they cannot be read; "": they are not there.
func (r *Reader) missing(seq uint64, cause string) {
	gap := r.before > 0 && seq > r.before+1
	switch {
	case gap && r.of.gapless || cause != "" && gap:
		r.of.Damage = append(r.of.Damage, between(r.before+1, seq-1, cause, r.of.gapless))
	case cause != "":
		r.of.Damage = append(r.of.Damage, fmt.Sprintf("what is before message %d cannot be read (%s)", seq, cause))
	}
}

// between describes missing messages. If all is false, some of them may have been removed on purpose, and only the
// others are missing.
func between(from, to uint64, cause string, all bool) string {
	var what string
	switch {
	case all && from == to:
		what = fmt.Sprintf("message %d is missing", from)
	case all:
		what = fmt.Sprintf("messages %d to %d are missing", from, to)
	case from == to:
		what = fmt.Sprintf("message %d cannot be read, unless it was removed", from)
	default:
		what = fmt.Sprintf("of messages %d to %d, those that were not removed cannot be read", from, to)
	}
	if cause != "" {
		what += " (" + cause + ")"
	}
	return what
}

// Read reads the blocks of a stream in the store of a server that does not run.
func (s Stream) Read(store, account string) (Report, error) {
	r := NewReader(s)
	files, err := blockfile.Files(blockfile.Messages(store, account, s.Name))
	if err != nil {
		return r.of, err
	}
	for i, file := range files {
		b, err := os.ReadFile(file.Path)
		if errors.Is(err, fs.ErrNotExist) {
			r.Skip()
			continue
		}
		if err == nil {
			_, err = r.Block(file, b, i == len(files)-1)
		}
		if err != nil {
			return r.of, fmt.Errorf("the stream %s: %w", s.Name, err)
		}
	}
	return r.Report(), nil
}
