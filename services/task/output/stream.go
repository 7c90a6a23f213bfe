package output

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// StreamName is the name of the JetStream stream with all output: one subject for
	// each task, one message for each chunk.
	StreamName = "quartet-output"
	// subjectPrefix is before the namespace and the task id in a subject.
	subjectPrefix = "quartet.output."

	// The headers of a message: the offset of its first byte, and the number of its OutputStream.
	headerOffset = "Quartet-Offset"
	headerStream = "Quartet-Stream"

	// keptChunks bounds the chunks of a task, for one that writes little and often; the
	// broker drops the oldest ones. Kept bounds the bytes.
	keptChunks = 4096
	// The output of a running task may exceed Kept by trimSlack before its beginning is
	// purged. The broker records in its newest block what a purge removes from the middle
	// of a block, and cannot delete a block with such records before its next sync. With a
	// purge for each MiB, 1.2 GB of 1.3 GB of output stayed on disk until then; with one
	// for each 32 MiB, an eighth.
	trimSlack = 32 << 20

	appendTimeout     = 5 * time.Second
	codeWrongSequence = 10071 // the broker's error code for another sequence than the expected one
	appendAttempts    = 4     // how often an append with a wrong sequence is tried
	maxEnds           = 4096  // how many tails are remembered
)

// StreamConfig returns the configuration of the stream that Stream needs. keep is how long it keeps output after it
// was written; 0: always. Only its leader serves reads, since a follower that was suspended may return old data (R6).
func StreamConfig(replicas int, keep time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              StreamName,
		Description:       "Quartet: what commands wrote, the end of it",
		Subjects:          []string{subjectPrefix + ">"},
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		Replicas:          max(replicas, 1),
		MaxMsgsPerSubject: keptChunks,
		MaxAge:            keep,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxConsumers:      -1,
	}
}

// Stream is a Store on NATS JetStream.
type Stream struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	kept   int64 // Kept, less in tests
	slack  int64 // trimSlack, less in tests
	room   *framelog.Room

	mu   sync.Mutex
	ends map[string]tail // of tasks that were appended to recently, by subject
}

// tail is what is remembered of the output of a subject. Another writer may have appended since;
// the expected sequence of every append detects that.
type tail struct {
	seq    uint64 // of the last message, 0 if none
	end    int64  // offset behind the last byte
	oldest int64  // offset of the oldest byte that is kept
}

// OpenStream creates or updates the stream, see StreamConfig, and returns a Store on it. Append returns STORAGE_FULL
// if space does not allow the chunk, see framelog.Room.Check.
func OpenStream(ctx context.Context, nc *nats.Conn, replicas int, keep time.Duration, space *framelog.Room) (*Stream,
	error,
) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("task: output: %w", err)
	}
	stream, err := js.CreateOrUpdateStream(ctx, StreamConfig(replicas, keep))
	if err != nil {
		return nil, fmt.Errorf("task: stream %s: %w", StreamName, err)
	}
	return &Stream{js: js, stream: stream, kept: Kept, slack: trimSlack, room: space, ends: make(map[string]tail)}, nil
}

// subjectOf returns the subject of a task's output.
func subjectOf(namespace, taskID string) string { return subjectPrefix + namespace + "." + taskID }

// Append implements Store. An append whose acknowledgement was lost is recognized by its
// offset when it is repeated; one that arrives after a later one is refused by its expected
// sequence, and tried again from the current end.
func (o *Stream) Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	if err := o.room.Check(len(chunk.GetData()), false); err != nil {
		return 0, err
	}
	subject := subjectOf(namespace, taskID)
	var err error
	for range appendAttempts {
		var at tail
		if at, err = o.findTail(ctx, subject); err != nil {
			break
		}
		fresh := newBytes(chunk, at.end)
		if fresh == nil {
			return at.end, nil
		}
		var ack *jetstream.PubAck
		ack, err = o.js.PublishMsg(ctx, &nats.Msg{
			Subject: subject,
			Header: nats.Header{
				headerOffset: []string{strconv.FormatInt(fresh.GetOffset(), 10)},
				headerStream: []string{strconv.Itoa(int(fresh.GetStream()))},
			},
			Data: fresh.GetData(),
		}, jetstream.WithExpectLastSequencePerSubject(at.seq), jetstream.WithRetryAttempts(0))
		if err == nil {
			at.seq, at.end = ack.Sequence, ChunkEnd(fresh)
			o.purge(ctx, subject, at, o.slack)
			return at.end, nil
		}
		o.forget(subject)
		if api := (*jetstream.APIError)(nil); !errors.As(err, &api) || api.ErrorCode != codeWrongSequence {
			break
		}
	}
	return 0, storageFault("output of task "+taskID+" could not be stored", err)
}

// findTail returns the tail of a subject from o.ends or, if it is not there, from the broker. It does not put it into
// o.ends. If the broker has no output of the subject, findTail returns the zero tail and no error.
func (o *Stream) findTail(ctx context.Context, subject string) (tail, error) {
	o.mu.Lock()
	at, known := o.ends[subject]
	o.mu.Unlock()
	if known {
		return at, nil
	}
	last, err := o.last(ctx, subject)
	if err != nil || last == nil {
		return tail{}, err
	}
	first, err := o.from(ctx, subject, 1)
	if err != nil {
		return tail{}, err
	}
	return tail{last.seq, ChunkEnd(last.chunk), first.chunk.GetOffset()}, nil
}

// purge remembers the end of a subject, and purges its beginning if the subject has more than
// o.kept and slack bytes. at is the end.
func (o *Stream) purge(ctx context.Context, subject string, at tail, slack int64) {
	keep := at.end - o.kept
	var purge error
	if keep-at.oldest > slack {
		var m *storedChunk
		if m, purge = o.locate(ctx, subject, at.seq, keep); purge == nil {
			purge = o.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(m.seq))
			at.oldest = m.chunk.GetOffset()
		}
	}
	if purge != nil { // not an error: the chunk is stored, and the next append purges again
		o.forget(subject)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ends) >= maxEnds {
		clear(o.ends)
	}
	o.ends[subject] = at
}

// Trim implements Store. It leaves output that exceeds what is kept by a quarter or less.
func (o *Stream) Trim(ctx context.Context, namespace, taskID string) error {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	subject := subjectOf(namespace, taskID)
	at, err := o.findTail(ctx, subject)
	if err != nil {
		return storageFault("output of task "+taskID+" could not be trimmed", err)
	}
	o.purge(ctx, subject, at, o.kept/4)
	o.forget(subject) // nothing is appended any more
	return nil
}

// forget removes a subject from ends, so that the next append reads the subject's end from the broker.
func (o *Stream) forget(subject string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ends, subject)
}

// Read implements Store. It finds the first message by a binary
// search over the sequences, since offsets grow with them.
func (o *Stream) Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (Piece, error) {
	subject := subjectOf(namespace, taskID)
	p, err := o.read(ctx, subject, offset, limit)
	if err != nil {
		return Piece{}, storageFault("output of task "+taskID+" could not be read", err)
	}
	return p, nil
}

// read is Read by subject, with the broker's errors.
func (o *Stream) read(ctx context.Context, subject string, offset int64, limit int) (Piece, error) {
	last, err := o.last(ctx, subject)
	if err != nil || last == nil {
		return Piece{}, err
	}
	first, err := o.from(ctx, subject, 1)
	if err != nil {
		return Piece{}, err
	}
	p := Piece{Oldest: first.chunk.GetOffset(), End: ChunkEnd(last.chunk)}
	p.Start = resolve(offset, p.Oldest, p.End)
	if p.Start == p.End {
		return p, nil
	}
	m := first
	if p.Start >= last.chunk.GetOffset() {
		m = last
	} else if p.Start >= ChunkEnd(first.chunk) {
		if m, err = o.locate(ctx, subject, last.seq, p.Start); err != nil {
			return Piece{}, err
		}
	}
	for !fill(&p, []*taskv1.OutputChunk{m.chunk}, limit) && m.seq < last.seq {
		if m, err = o.from(ctx, subject, m.seq+1); err != nil {
			return Piece{}, err
		}
	}
	p.End = max(p.End, lastEnd(p))
	return p, nil
}

// lastEnd returns the offset after the chunks of a piece, 0 if it has none.
func lastEnd(p Piece) int64 {
	if len(p.Chunks) == 0 {
		return 0
	}
	return ChunkEnd(p.Chunks[len(p.Chunks)-1])
}

// locate returns the last message up to sequence high that begins at or before offset,
// or the first message if none does.
func (o *Stream) locate(ctx context.Context, subject string, high uint64, offset int64) (*storedChunk, error) {
	best, err := o.from(ctx, subject, 1)
	if err != nil {
		return nil, err
	}
	for low := best.seq; low < high; {
		mid := low + (high-low+1)/2
		m, err := o.from(ctx, subject, mid)
		if err != nil {
			return nil, err
		}
		if m.seq <= high && m.chunk.GetOffset() <= offset {
			best, low = m, m.seq
		} else {
			high = mid - 1
		}
	}
	return best, nil
}

// Remove implements Store. The bytes of the output are overwritten.
func (o *Stream) Remove(ctx context.Context, namespace, taskID string) error {
	subject := subjectOf(namespace, taskID)
	o.forget(subject)
	if err := jetlog.Overwrite(ctx, o.stream, subject); err != nil {
		return storageFault("output of task "+taskID+" could not be removed", err)
	}
	return nil
}

// storedChunk is a chunk with its sequence in the stream.
type storedChunk struct {
	seq   uint64
	chunk *taskv1.OutputChunk
}

// last returns the last chunk of a subject, or nil.
func (o *Stream) last(ctx context.Context, subject string) (*storedChunk, error) {
	m, err := o.stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return parse(m, err)
}

// from returns the first chunk of a subject at or after a sequence. It is an error if there is
// none.
func (o *Stream) from(ctx context.Context, subject string, seq uint64) (*storedChunk, error) {
	return parse(o.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject)))
}

// parse returns the chunk of a message; if err is not nil, it returns err.
func parse(m *jetstream.RawStreamMsg, err error) (*storedChunk, error) {
	if err != nil {
		return nil, err
	}
	offset, kind, err := parseHeader(m.Header)
	if err != nil {
		return nil, fmt.Errorf("message %d of %s: %w", m.Sequence, StreamName, err)
	}
	return &storedChunk{m.Sequence, &taskv1.OutputChunk{Offset: offset, Stream: kind, Data: m.Data}}, nil
}

// parseHeader returns what the header of a message says.
func parseHeader(h nats.Header) (offset int64, kind taskv1.OutputStream, err error) {
	if offset, err = strconv.ParseInt(h.Get(headerOffset), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("it has no offset: %w", err)
	}
	n, err := strconv.ParseInt(h.Get(headerStream), 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("it does not say which output it is: %w", err)
	}
	return offset, taskv1.OutputStream(n), nil
}

// Readable returns an error if a message with a header is no chunk of output.
func Readable(h nats.Header) error {
	_, _, err := parseHeader(h)
	return err
}

// storageFault is the error for a failure of the broker, whose message is not shown to
// callers. Since an append may be repeated, the error does not say whether it took
// effect.
func storageFault(what string, cause error) error {
	return fault.New(codes.Unavailable, fault.Storage, what+"; try again").WithCause(cause)
}
