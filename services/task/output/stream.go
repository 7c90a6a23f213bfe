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
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// OutputStream is the JetStream stream that holds all output, one subject a
	// task, one message a chunk.
	StreamName    = "quartet-output"
	subjectPrefix = "quartet.output."

	headerOffset = "Quartet-Offset"
	headerStream = "Quartet-Stream"

	// keptChunks bounds a task that writes little and often; the broker drops
	// the oldest chunk by itself. KeptOutput bounds one that writes much.
	keptChunks = 4096
	// A living task may grow by trimSlack over KeptOutput before its beginning is
	// purged. The broker notes what a purge takes from the middle of a block in the
	// newest one, and cannot remove a block with such notes before its next sync: a
	// purge for each MiB left 1.2 GB on disk of 1.3 GB of output, one for each 32 MiB
	// leaves an eighth, for as long as a sync takes to come.
	trimSlack = 32 << 20

	appendTimeout     = 5 * time.Second
	codeWrongSequence = 10071
	appendAttempts    = 4
	maxEnds           = 4096
)

// StreamConfig is the stream that StreamOutput needs. Only its leader
// answers reads, since a follower that was frozen answers with old data (R6).
func StreamConfig(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              StreamName,
		Description:       "Quartet: what commands wrote, the end of it",
		Subjects:          []string{subjectPrefix + ">"},
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		Replicas:          max(replicas, 1),
		MaxMsgsPerSubject: keptChunks,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxConsumers:      -1,
	}
}

// Stream is Output on NATS JetStream.
type Stream struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	kept   int64 // KeptOutput, less in tests
	slack  int64 // trimSlack, less in tests

	mu   sync.Mutex
	ends map[string]tail // of the tasks appended to lately, by subject
}

// tail is where a subject ends. It is a guess: the expected sequence of
// every append shows whether it still holds.
type tail struct {
	seq    uint64 // of the last message, 0 if none
	end    int64
	oldest int64 // nothing before it is kept
}

// OpenStream creates or updates the stream and opens the output on it.
func OpenStream(ctx context.Context, nc *nats.Conn, replicas int) (*Stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("task: output: %w", err)
	}
	stream, err := js.CreateOrUpdateStream(ctx, StreamConfig(replicas))
	if err != nil {
		return nil, fmt.Errorf("task: stream %s: %w", StreamName, err)
	}
	return &Stream{js: js, stream: stream, kept: Kept, slack: trimSlack, ends: make(map[string]tail)}, nil
}

func subjectOf(namespace, taskID string) string { return subjectPrefix + namespace + "." + taskID }

// Append implements Output. An append whose answer was lost is found again by
// its offset; one that lands late is refused by its expected sequence.
func (o *Stream) Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
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

// findTail gives where a subject ends, as remembered or as the broker knows.
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

// purge remembers the end, and purges the beginning of what grew too large.
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
	if purge != nil { // the chunk is stored; the next append tries again
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

// Trim implements Output.
func (o *Stream) Trim(ctx context.Context, namespace, taskID string) error {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	subject := subjectOf(namespace, taskID)
	at, err := o.findTail(ctx, subject)
	if err != nil {
		return storageFault("output of task "+taskID+" could not be trimmed", err)
	}
	o.purge(ctx, subject, at, o.kept/4)
	o.forget(subject) // nothing follows
	return nil
}

func (o *Stream) forget(subject string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ends, subject)
}

// Read implements Output. Where to begin is found by a search over the
// sequences, since offsets grow with them; nothing is kept in memory for it.
func (o *Stream) Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (Piece, error) {
	subject := subjectOf(namespace, taskID)
	p, err := o.read(ctx, subject, offset, limit)
	if err != nil {
		return Piece{}, storageFault("output of task "+taskID+" could not be read", err)
	}
	return p, nil
}

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

func lastEnd(p Piece) int64 {
	if len(p.Chunks) == 0 {
		return 0
	}
	return ChunkEnd(p.Chunks[len(p.Chunks)-1])
}

// locate finds the last message up to sequence high that begins at or before
// offset; the first one if none does.
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

// Remove implements Output.
func (o *Stream) Remove(ctx context.Context, namespace, taskID string) error {
	subject := subjectOf(namespace, taskID)
	o.forget(subject)
	if err := o.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
		return storageFault("output of task "+taskID+" could not be removed", err)
	}
	return nil
}

// storedChunk is a chunk with its sequence in the stream.
type storedChunk struct {
	seq   uint64
	chunk *taskv1.OutputChunk
}

// last gives the last chunk of a subject, or nil.
func (o *Stream) last(ctx context.Context, subject string) (*storedChunk, error) {
	m, err := o.stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return parse(m, err)
}

// from gives the first chunk of a subject at or behind a sequence.
func (o *Stream) from(ctx context.Context, subject string, seq uint64) (*storedChunk, error) {
	return parse(o.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject)))
}

func parse(m *jetstream.RawStreamMsg, err error) (*storedChunk, error) {
	if err != nil {
		return nil, err
	}
	offset, err := strconv.ParseInt(m.Header.Get(headerOffset), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("message %d of %s has no offset: %w", m.Sequence, StreamName, err)
	}
	kind, err := strconv.ParseInt(m.Header.Get(headerStream), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("message %d of %s does not say which output it is: %w", m.Sequence, StreamName, err)
	}
	return &storedChunk{m.Sequence, &taskv1.OutputChunk{Offset: offset, Stream: taskv1.OutputStream(kind), Data: m.Data}}, nil
}

// storageFault hides the broker's words. An append may be repeated without
// harm, so its outcome needs no further words either.
func storageFault(what string, cause error) error {
	return fault.New(codes.Unavailable, fault.Storage, what+"; try again").WithCause(cause)
}
