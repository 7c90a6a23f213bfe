package archive

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/framelog"
	archivev1 "quartet/pkg/pb/quartet/archive/v1"
)

// Frame is a frame of the log and its sequence number.
type Frame struct {
	Seq uint64
	framelog.Frame
}

// encoder packs frames into objects.
type encoder struct {
	partition string
	zstd      *zstd.Encoder
	end       framelog.End // behind the last frame that was added

	before framelog.End // the first one of the object
	frames []*archivev1.Frame
	size   int
	erased int64 // lines of all frames that were added
	// How many lines the frames had that were removed before, at most: the difference of the wal_seqs at both ends. A
	// Removed without lines counts as 1, since any Removed needs formatRemoved.
	gone int64
}

// newEncoder returns the encoder of the frames of a partition behind an end of its log.
func newEncoder(partition string, before framelog.End) (*encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(objectBytes))
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return &encoder{partition: partition, zstd: z, end: before, before: before}, nil
}

// add adds a frame that continues those before it. Other frames are an error that wraps a *framelog.Broken.
func (e *encoder) add(seq uint64, f framelog.Frame) error {
	next, intact, err := e.end.Next(e.partition, seq, f)
	if err == nil && !intact {
		err = framelog.Altered(e.partition, e.end, seq)
	}
	if err != nil {
		return err
	}

	if f.Removed.Seq > 0 {
		e.frames = append(e.frames, &archivev1.Frame{Step: seq - e.end.Seq, Removed: f.Removed.String()})
		e.end, e.size, e.gone = next, e.size+frameRoom, e.gone+max(int64(next.WalSeq-e.end.WalSeq), 1)
		return nil
	}
	l := f.Link
	packed := &archivev1.Frame{
		Step: seq - e.end.Seq, Id: f.ID, Generation: f.Generation, Body: append([]byte(nil), f.Body...),
		Segment: l.Segment,
		Format:  uint32(l.Format), Incarnation: l.Incarnation, First: l.First, Next: l.Next,
	}
	if l.Format > 0 && f.Rests == nil {
		packed.Salt = append([]byte(nil), l.Salt[:]...)
	}
	for _, r := range f.Rests {
		if r.Erased {
			packed.Lines = append(packed.Lines, &archivev1.Line{Erased: append([]byte(nil), r.Hash[:]...)})
		} else {
			packed.Lines = append(packed.Lines, &archivev1.Line{Salt: append([]byte(nil), r.Salt[:]...)})
		}
	}
	// decode takes Prev from the frame before, but not where it differs; the first one of an object always has it.
	if l.Format > 0 && (len(e.frames) == 0 || l.Prev != e.end.Hash) {
		packed.Prev = append([]byte(nil), l.Prev[:]...)
	}
	e.frames, e.end = append(e.frames, packed), next
	e.size += len(f.Body) + frameRoom + len(f.Rests)*lineRoom
	e.erased += int64(f.Erased())
	return nil
}

// frameRoom is about how many bytes a frame has beside its body, and lineRoom a line of a frame of which lines were
// erased.
const (
	frameRoom = 200
	lineRoom  = 40
)

// full reports whether the object should be finished before a frame with a body of n bytes. A large frame is alone in
// its object, which then is about as large as the frame's message is in the log.
func (e *encoder) full(n int) bool { return e.size > 0 && e.size+n+frameRoom > objectBytes }

// finish returns the object with the frames that were added since the last one, and the end of the log before them; no
// object if there are none. The next object begins behind them.
func (e *encoder) finish() (content []byte, before framelog.End, err error) {
	if len(e.frames) == 0 {
		return nil, e.before, nil
	}
	before = e.before
	content, err = pack(e.zstd, &archivev1.Frames{Frames: e.frames})
	e.frames, e.size, e.before = nil, 0, e.end
	return content, before, err
}

// decode returns the frames of an object that begins behind an end of the log of a partition, and the end behind them.
// It verifies that they continue each other.
func decode(partition string, before framelog.End, content []byte) (frames []Frame, end framelog.End, err error) {
	var in archivev1.Frames
	if err := unpack(content, &in); err != nil {
		return nil, end, err
	}
	frames, end = make([]Frame, len(in.GetFrames())), before
	for i, packed := range in.GetFrames() {
		f := framelog.Frame{
			ID: packed.GetId(), Generation: packed.GetGeneration(), Body: packed.GetBody(),
			Link: framelog.Link{
				Format: int(packed.GetFormat()), Incarnation: packed.GetIncarnation(), Segment: packed.GetSegment(),
				First: packed.GetFirst(), Next: packed.GetNext(),
			},
		}
		if f.Link.Format > 0 {
			f.Link.Prev = end.Hash
			copy(f.Link.Salt[:], packed.GetSalt())
			if len(packed.GetPrev()) > 0 {
				copy(f.Link.Prev[:], packed.GetPrev())
			}
		}

		// The lines are stored only if some lines of the frame were erased.
		for _, line := range packed.GetLines() {
			r := framelog.Rest{Erased: len(line.GetErased()) > 0}
			copy(r.Hash[:], line.GetErased())
			copy(r.Salt[:], line.GetSalt())
			f.Rests = append(f.Rests, r)
		}
		if f.Link.Format > 0 {
			f.Link.Hash = framelog.HashOf(partition, f)
		}
		if packed.GetRemoved() != "" {
			removed, err := framelog.ParseEnd(packed.GetRemoved())
			if err != nil {
				return nil, end, fmt.Errorf("archive: %w", err)
			}
			f = framelog.Removed(end, removed)
		}

		seq := end.Seq + packed.GetStep()
		next, intact, err := end.Next(partition, seq, f)
		if err == nil && !intact {
			err = framelog.Altered(partition, end, seq)
		}
		if err != nil {
			return nil, end, fmt.Errorf("archive: %w", err)
		}
		end = next
		frames[i] = Frame{seq, f}
	}
	return frames, end, nil
}

// pack returns a message as the bytes of an object.
func pack(z *zstd.Encoder, m proto.Message) ([]byte, error) {
	plain, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return z.EncodeAll(plain, nil), nil
}

// unpack reads what pack returned.
func unpack(b []byte, m proto.Message) error {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxObject))
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	defer z.Close()
	plain, err := z.DecodeAll(b, nil)
	if err == nil {
		err = proto.Unmarshal(plain, m)
	}
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}
