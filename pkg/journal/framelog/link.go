package framelog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"strconv"
	"strings"
)

// The formats of frames. Frames of format 0 are not chained; a log may begin with them.
const (
	formatChained = 1
	formatClosing = 2 // the last frame of a segment, which says where the next one begins
	// Format is the newest format that is written.
	Format = formatClosing
	// formatErased is the format that the link in a message has if the frame has erased lines. Link.Format of the frame
	// stays what it was.
	formatErased = 3
	// formatRemoved is the format that the link in a message has if the message stands for frames that were removed.
	formatRemoved = 4
)

// Hash identifies a frame and all frames before it.
type Hash [sha256.Size]byte

// IsZero reports whether h is the hash before the first frame.
func (h Hash) IsZero() bool { return h == Hash{} }

// String returns h in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Link chains a frame to the one before it.
type Link struct {
	Format int
	// Incarnation counts how often the partition was restored, or lost frames that its operator
	// gave up: what other places know of an earlier incarnation may not be in this log.
	Incarnation uint64
	Segment     uint64 // number of the segment in which the frame is
	First       uint64 // wal_seq of the frame's first line; of a frame without lines that of the next line
	// of a frame that closes its segment: the sequence number at which the next segment begins; 0 for all others
	Next uint64
	Salt Salt
	Prev Hash // of the frame before; zero for the first
	Hash Hash // of this frame
}

// String returns l as ParseLink reads it, "" for format 0.
func (l Link) String() string {
	if l.Format == 0 {
		return ""
	}
	numbers := fmt.Sprintf("%d.%d.%d.%d", l.Format, l.Incarnation, l.Segment, l.First)
	if l.Format == formatClosing {
		numbers += "." + strconv.FormatUint(l.Next, 10)
	}
	return fmt.Sprintf("%s.%s.%s.%s", numbers, text.EncodeToString(l.Salt[:]), text.EncodeToString(l.Prev[:]),
		text.EncodeToString(l.Hash[:]))
}

// ParseLink parses what Link.String returned.
func ParseLink(s string) (l Link, err error) {
	if s == "" {
		return l, nil
	}
	var format uint64
	numbers := []*uint64{&format, &l.Incarnation, &l.Segment, &l.First}
	if strings.HasPrefix(s, strconv.Itoa(formatClosing)+".") {
		numbers = append(numbers, &l.Next)
	}
	err = parseParts(s, numbers, l.Salt[:], l.Prev[:], l.Hash[:])
	l.Format = int(format & math.MaxInt32)
	switch {
	case err != nil:
	case format == 0 || format > math.MaxInt32:
		err = fmt.Errorf("its format is %d", format)
	case (l.Format == formatClosing) != (l.Next > 0):
		err = fmt.Errorf("a frame of format %d names %d as the beginning of the next segment", l.Format, l.Next)
	}
	if err != nil {
		return Link{}, fmt.Errorf("framelog: %q is not a link: %w", s, err)
	}
	return l, nil
}

// text is how hashes and salts are written.
var text = base64.RawURLEncoding.Strict()

// parseParts parses numbers and then bytes, separated by dots.
func parseParts(s string, numbers []*uint64, sums ...[]byte) error {
	parts := strings.Split(s, ".")
	if len(parts) != len(numbers)+len(sums) {
		return fmt.Errorf("it has %d parts, not %d", len(parts), len(numbers)+len(sums))
	}
	for i, n := range numbers {
		var err error
		if *n, err = strconv.ParseUint(parts[i], 10, 64); err != nil {
			return err
		}
	}
	for i, sum := range sums {
		b, err := text.DecodeString(parts[len(numbers)+i])
		if err == nil && len(b) != len(sum) {
			err = fmt.Errorf("part %d has %d bytes, not %d", len(numbers)+i+1, len(b), len(sum))
		}
		if err != nil {
			return err
		}
		copy(sum, b)
	}
	return nil
}

// Salt is what the hashes of a frame's lines are salted with.
type Salt [16]byte

// Content computes the hash of a frame's lines. The zero value is not ready; use NewContent.
type Content struct {
	sum   hash.Hash
	salt  Salt
	count uint32
}

// NewContent returns the Content of a frame without lines.
func NewContent(salt Salt) *Content { return &Content{sum: sha256.New(), salt: salt} }

// Add adds lines, each of which ends with a newline.
func (c *Content) Add(lines []byte) {
	for line := range bytes.Lines(lines) {
		c.AddErased(lineHash(c.salt, c.count, line))
	}
}

// AddErased adds a line by its hash.
func (c *Content) AddErased(h Hash) {
	c.sum.Write(h[:])
	c.count++
}

// LineHashes returns the hashes that the lines of a whole frame have with the salt of c, in order. It does not change
// c.
func (c *Content) LineHashes(lines []byte) (hashes []Hash) {
	for line := range bytes.Lines(lines) {
		hashes = append(hashes, lineHash(c.salt, uint32(len(hashes)), line))
	}
	return hashes
}

// Sum returns the hash of the lines that were added.
func (c *Content) Sum() (h Hash) {
	c.sum.Sum(h[:0])
	return h
}

// Lines returns the number of lines.
func (c *Content) Lines() uint64 { return uint64(c.count) }

// lineHash returns the salted hash of the line with an index.
func lineHash(salt Salt, index uint32, line []byte) Hash {
	return saltedHash(lineSalt(salt, index), line)
}

// hashOf returns the hash of a frame of a partition. It covers everything but Link.Hash and the salt,
// which is removed from the frame when a line is erased.
func hashOf(partition string, f Frame, c *Content) Hash {
	buf := make([]byte, 0, 256)
	buf = append(buf, "quartet frame\n"...)
	for _, s := range []string{partition, f.ID} {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	for _, n := range []uint64{
		uint64(f.Link.Format), f.Generation, f.Link.Incarnation, f.Link.Segment, f.Link.First,
		c.Lines(),
	} {
		buf = binary.BigEndian.AppendUint64(buf, n)
	}
	if f.Link.Format == formatClosing {
		buf = binary.BigEndian.AppendUint64(buf, f.Link.Next)
	}
	buf = append(buf, f.Link.Prev[:]...)
	return sha256.Sum256(c.sum.Sum(buf)) // of buf, followed by the hash of the lines
}

// HashOf computes the hash of a chained frame of a partition from its lines and its link. It does not read Link.Hash.
func HashOf(partition string, f Frame) Hash {
	if f.Removed.Seq > 0 {
		return f.Removed.Hash
	}
	c, _ := f.content()
	return hashOf(partition, f, c)
}

// PartitionName returns the name of a partition in hashes and errors, such as work/3.
func PartitionName(plane string, partition int) string { return plane + "/" + strconv.Itoa(partition) }

// End is a place in a log: behind a frame.
type End struct {
	Seq         uint64 // sequence number of the frame; 0 before the first one
	WalSeq      uint64 // of the last line up to there
	Hash        Hash   // of the frame
	Incarnation uint64
	Segment     uint64 // in which the next frame is; behind a frame that closes a segment, the one after that
}

// Broken says that the frames of a partition do not continue each other: some are missing, were
// changed, or are of another log.
type Broken struct {
	Partition string
	After     End    // the last frame that is in order
	Seq       uint64 // of the frame that does not follow it
	First     uint64 // wal_seq at which that one begins
	Cause     string
}

// Error implements error. It names the partition and the frames or wal_seqs.
func (b *Broken) Error() string {
	switch {
	case b.First > b.After.WalSeq+1:
		missing := fmt.Sprintf("wal_seq %d to %d are", b.After.WalSeq+1, b.First-1)
		if b.After.WalSeq+1 == b.First-1 {
			missing = fmt.Sprintf("wal_seq %d is", b.First-1)
		}
		return fmt.Sprintf("the journal of %s is damaged: %s missing between frames %d and %d", b.Partition, missing,
			b.After.Seq, b.Seq)
	case b.First == 0:
		return fmt.Sprintf("the journal of %s is damaged at frame %d: %s", b.Partition, b.Seq, b.Cause)
	}
	return fmt.Sprintf("the journal of %s is damaged at frame %d, wal_seq %d: %s", b.Partition, b.Seq, b.First, b.Cause)
}

// Next returns the end of the log behind the frame f at seq, if f continues the log at e. Otherwise it returns e and a
// *Broken. intact is false if the lines of f do not have the hash of f: they were changed, and the frames that follow f
// may be in order nevertheless.
func (e End) Next(partition string, seq uint64, f Frame) (next End, intact bool, err error) {
	if f.Removed.Seq > 0 {
		return e.nextRemoved(partition, seq, f.Removed)
	}
	next, cause := e.continuedBy(f)
	if cause != "" {
		return e, false, &Broken{Partition: partition, After: e, Seq: seq, First: f.Link.First, Cause: cause}
	}
	next, intact = next.endBehind(partition, seq, f)
	return next, intact, nil
}

// Anchor returns the end of the log behind the frame f at seq, for a reader that has not read the frames before f. It
// takes the incarnation, the segment and the first wal_seq from f and does not check that f continues the frames before
// it. intact is false if the lines of f do not have the hash of f, or if f stands for removed frames that end elsewhere
// than at seq. Of a frame of format 0 nothing can be verified, and WalSeq counts its own lines only.
func Anchor(partition string, seq uint64, f Frame) (end End, intact bool) {
	if f.Removed.Seq > 0 {
		return f.Removed, f.Removed.Seq == seq
	}
	claimed := End{WalSeq: max(f.Link.First, 1) - 1, Incarnation: f.Link.Incarnation, Segment: f.Link.Segment}
	return claimed.endBehind(partition, seq, f)
}

// nextRemoved is Next for a frame that stands for removed frames, which end at to. Their hashes cannot be verified, so
// it checks only that to is not before e; the frame that follows continues the last of them.
func (e End) nextRemoved(partition string, seq uint64, to End) (next End, intact bool, err error) {
	if to.Seq != seq || to.Seq <= e.Seq || to.WalSeq < e.WalSeq || to.Incarnation < e.Incarnation ||
		to.Segment < e.Segment {
		cause := fmt.Sprintf("the frames that were removed there end at %s, which does not follow %s", to, e)
		return e, false, &Broken{Partition: partition, After: e, Seq: seq, Cause: cause}
	}
	return to, true, nil
}

// endBehind returns the end of the log behind f, whose lines begin at e. intact is false if they do not have the hash
// of f; the end then has the hash that f claims, which the next frame continues.
func (e End) endBehind(partition string, seq uint64, f Frame) (next End, intact bool) {
	c, complete := f.content()
	e.Seq, e.WalSeq, e.Hash = seq, e.WalSeq+c.Lines(), hashOf(partition, f, c)
	if f.Link.Next > 0 {
		e.Segment++
	}
	if f.Link.Format == 0 || e.Hash == f.Link.Hash { // a frame of format 0 has no hash to compare with
		return e, complete
	}
	e.Hash = f.Link.Hash
	return e, false
}

// Altered returns the error for the frame at seq, whose lines do not have its hash. before is the end of the log
// before it.
func Altered(partition string, before End, seq uint64) *Broken {
	return &Broken{
		Partition: partition, After: before, Seq: seq, First: before.WalSeq + 1,
		Cause: fmt.Sprintf("the content of frame %d was changed", seq),
	}
}

// continuedBy returns the end of the log directly before the lines of f, and "" if f continues the log at e. Otherwise
// it returns e and the cause. It does not look at the lines.
func (e End) continuedBy(f Frame) (start End, cause string) {
	l := f.Link
	switch {
	case l.Format == 0 && !e.chained():
		return e, ""
	case l.Format == 0:
		return e, "a frame that is not chained follows"
	case l.Format < 0:
		return e, "how the frame is chained cannot be read"
	case l.Format > Format:
		return e, fmt.Sprintf("the frame has format %d, this version reads up to %d", l.Format, Format)
	case l.Prev != e.Hash:
		return e, fmt.Sprintf("the frame continues another one (%.12s, not %.12s)", l.Prev, e.Hash)
	// Only a new incarnation may leave out segments or wal_seqs. Behind a frame that closes a segment, e.Segment is the
	// next one already.
	case l.Incarnation < e.Incarnation, e.chained() && (l.Segment < e.Segment || l.Segment > e.Segment &&
		l.Incarnation == e.Incarnation):
		return e, fmt.Sprintf("the frame is of incarnation %d, segment %d, where %d, %d continues", l.Incarnation,
			l.Segment, e.Incarnation, e.Segment)
	// An End behind a frame of format 0 has the incarnation 0, so there too First may be higher: if the End is of an
	// anchor, its WalSeq counts only the lines of that frame. Then only Prev shows that f follows.
	case l.First <= e.WalSeq || l.First > e.WalSeq+1 && l.Incarnation == e.Incarnation:
		return e, fmt.Sprintf("wal_seq %d follows %d", l.First, e.WalSeq)
	}
	return End{WalSeq: l.First - 1, Incarnation: l.Incarnation, Segment: l.Segment}, ""
}

// chained reports whether the frame before e is chained.
func (e End) chained() bool { return e.Incarnation > 0 }

// SameAs reports whether e and other are the same place. If e has a sequence number and a zero hash, as an end has that
// was recorded before frames were chained, that cannot be determined, and SameAs returns true.
func (e End) SameAs(other End) bool {
	if e.Hash.IsZero() && e.Seq > 0 {
		return true
	}
	return e.Hash == other.Hash
}

// String returns e as ParseEnd reads it.
func (e End) String() string {
	return fmt.Sprintf("%d.%d.%d.%d.%s", e.Seq, e.WalSeq, e.Incarnation, e.Segment, text.EncodeToString(e.Hash[:]))
}

// ParseEnd parses what End.String returned.
func ParseEnd(s string) (e End, err error) {
	if err := parseParts(s, []*uint64{&e.Seq, &e.WalSeq, &e.Incarnation, &e.Segment}, e.Hash[:]); err != nil {
		return End{}, fmt.Errorf("framelog: %q is not the end of a log: %w", s, err)
	}
	return e, nil
}
