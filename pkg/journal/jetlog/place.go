package jetlog

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Place is a segment of a partition's log. Shared is set for segment 0 of a plane whose partitions began in one stream,
// as earlier versions wrote it.
type Place struct {
	Plane     string
	Partition int
	Segment   uint64
	Shared    bool
}

const streamPrefix = "quartet-journal-"

// SubjectPrefix returns the prefix of the subjects of a plane's frames; the number of the partition follows it.
func SubjectPrefix(plane string) string { return "quartet.journal." + plane + "." }

// Stream returns the name of the segment's stream.
func (p Place) Stream() string {
	if p.Shared {
		return streamPrefix + p.Plane
	}
	return streamPrefix + p.Plane + "-" + p.number()
}

// Subject returns the subject of the segment's frames. It has the number of tokens that the subjects in a shared stream
// have, so that an earlier version, which would create that stream, is refused by the server.
func (p Place) Subject() string {
	if p.Shared {
		return SubjectPrefix(p.Plane) + strconv.Itoa(p.Partition)
	}
	return SubjectPrefix(p.Plane) + p.number()
}

// number returns the numbers of partition and segment as they are in names.
func (p Place) number() string {
	return strconv.Itoa(p.Partition) + "-" + strconv.FormatUint(p.Segment, 10)
}

// Unused returns the subject of empty messages that fill gaps. A restore needs them: the server numbers the messages
// of the new stream without gaps, and each frame must get the sequence number that it had.
func (p Place) Unused() string {
	if p.Shared {
		return SubjectPrefix(p.Plane) + "unused"
	}
	return p.Subject() + unusedSuffix
}

const unusedSuffix = "-unused"

// IsUnused reports whether a subject is that of messages that fill gaps, as Place.Unused returns it:
// <subject of a segment>-unused, or quartet.journal.<plane>.unused in a stream that partitions share.
func IsUnused(subject string) bool {
	if ofSegment, found := strings.CutSuffix(subject, unusedSuffix); found {
		p, ok := ParseSubject(ofSegment)
		return ok && !p.Shared
	}
	rest, found := strings.CutPrefix(subject, "quartet.journal.")
	plane, unused := strings.CutSuffix(rest, ".unused")
	return found && unused && plane != "" && !strings.Contains(plane, ".")
}

// ParseStream returns the segment whose stream has a name; ok is false if there is none. Of a Shared one, Partition
// is 0 and means nothing.
func ParseStream(name string) (p Place, ok bool) {
	rest, ok := strings.CutPrefix(name, streamPrefix)
	if !ok || rest == "" {
		return Place{}, false
	}
	plane, numbers, split := strings.Cut(rest, "-")
	if !split {
		return Place{Plane: plane, Shared: true}, true
	}
	p, ok = parseNumber(numbers)
	p.Plane = plane
	return p, ok && plane != ""
}

// ParseSubject returns the segment whose frames have a subject; ok is false if there is none.
func ParseSubject(subject string) (p Place, ok bool) {
	rest, ok := strings.CutPrefix(subject, "quartet.journal.")
	plane, numbers, split := strings.Cut(rest, ".")
	if !ok || !split || plane == "" {
		return Place{}, false
	}
	if n, err := strconv.Atoi(numbers); err == nil && n >= 0 && strconv.Itoa(n) == numbers {
		return Place{Plane: plane, Partition: n, Shared: true}, true
	}
	p, ok = parseNumber(numbers)
	p.Plane = plane
	return p, ok
}

// parseNumber parses what number returned.
func parseNumber(s string) (p Place, ok bool) {
	partition, segment, _ := strings.Cut(s, "-")
	var err1, err2 error
	p.Partition, err1 = strconv.Atoi(partition)
	p.Segment, err2 = strconv.ParseUint(segment, 10, 64)
	return p, err1 == nil && err2 == nil && p.Partition >= 0 && p.number() == s
}

// Compare orders segments: by plane, a shared one first, by partition and number.
func (p Place) Compare(other Place) int {
	shared := func(p Place) int {
		if p.Shared {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(p.Plane, other.Plane), cmp.Compare(shared(p), shared(other)),
		cmp.Compare(p.Partition, other.Partition), cmp.Compare(p.Segment, other.Segment))
}

// Places returns the segments that a plane's journal has, in order. It does not need the servers that have them.
func Places(ctx context.Context, js jetstream.JetStream, plane string) ([]Place, error) {
	return Patiently(ctx, func(ctx context.Context) (all []Place, err error) {
		names := js.StreamNames(ctx, jetstream.WithStreamListSubject(SubjectPrefix(plane)+"*"))
		for name := range names.Name() {
			if p, ok := ParseStream(name); ok && p.Plane == plane {
				all = append(all, p)
			}
		}
		slices.SortFunc(all, Place.Compare)
		return all, names.Err()
	})
}
