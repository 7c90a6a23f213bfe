package framelog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"quartet/pkg/jsontext"
)

// TypeIncarnationBegan is the type of the event.
const TypeIncarnationBegan = "incarnation_began"

// Beginning describes the beginning of an incarnation.
type Beginning struct {
	Plane     string
	Partition int
	Behind    End    // the last frame of the former incarnation that is kept; the zero End: none is
	Segment   uint64 // in which it begins, not before that of Behind
	Number    uint64 // of the incarnation
	First     uint64 // wal_seq of its first line, above every one that the former one may have had
	// Generation is that of the writer of the frame, above those of the former incarnation.
	Generation uint64
	Cause      string // for people
	At         time.Time
}

// Frame returns the frame of the beginning: the event, and a partition_opened with its generation. newID is as for
// framelog.Writer, and salt is not known to anybody else.
func (b Beginning) Frame(newID func(prefix string) string, salt Salt) (Frame, error) {
	var body []byte
	for i, event := range []struct {
		kind    string
		payload any
	}{
		{TypeIncarnationBegan, map[string]string{"behind": b.Behind.String(), "cause": b.Cause}},
		{"partition_opened", map[string]uint64{"generation": b.Generation}},
	} {
		payload, err := json.Marshal(event.payload)
		if err != nil {
			return Frame{}, fmt.Errorf("incarnation: %w", err)
		}
		// As package journal writes its lines.
		body = fmt.Appendf(body,
			`{"wal_seq":%d,"event_type":"%s","agent_id":"","event_id":"%s","namespace":"","plane":"%s","created_at":`,
			b.First+uint64(i), event.kind, newID("evt_"), b.Plane)
		body = jsontext.AppendTime(body, b.At)
		body = fmt.Appendf(body, `,"payload":%s}`+"\n", payload)
	}
	content := NewContent(salt)
	content.Add(body)
	f := Frame{ID: newID(""), Generation: b.Generation, Body: body}
	return Begin(PartitionName(b.Plane, b.Partition), b.Behind, max(b.Segment, b.Behind.Segment),
		b.Number, b.First, f, content), nil
}

// BeginsBehind reports whether the frame f at seq begins a new incarnation, and returns the end of the log that it
// continues. It is false for the first incarnation, which does not begin with incarnation_began, and for a frame whose
// content was changed.
func BeginsBehind(partition string, seq uint64, f Frame) (end End, begins bool) {
	if f.Link.Incarnation < 2 {
		return end, false
	}
	if _, intact := Anchor(partition, seq, f); !intact {
		return end, false
	}
	lines := SplitLines(f.Body)
	if len(lines) == 0 || !bytes.Contains(lines[0], []byte(TypeIncarnationBegan)) {
		return end, false
	}
	var line struct {
		Type    string `json:"event_type"`
		Payload struct {
			Behind string `json:"behind"`
		} `json:"payload"`
	}
	if json.Unmarshal(lines[0], &line) != nil || line.Type != TypeIncarnationBegan {
		return end, false
	}
	end, err := ParseEnd(line.Payload.Behind)
	return end, err == nil && end.Hash == f.Link.Prev
}

// FollowIncarnations is Follow for a partition that may have begun a new incarnation: if the frame at after is gone
// because an operator let the partition continue behind an earlier one, it continues with the new incarnation.
func FollowIncarnations(ctx context.Context, log Log, partition string, after End,
	fn func(end End, f Frame) error,
) error {
	err := Follow(ctx, log, partition, after, fn)
	var broken *Broken
	if !errors.As(err, &broken) || broken.Partition != partition || broken.Seq != after.Seq {
		return err // it does not say that the frame at after is gone or another one
	}
	resumed, lost, findErr := ResumeAfterLoss(ctx, log, partition, after)
	if findErr != nil || !lost {
		return err
	}
	return Follow(ctx, log, partition, resumed, fn)
}

// errFound ends a scan.
var errFound = errors.New("incarnation: found")

// ResumeAfterLoss returns where a reader continues who has read the log up to after, if the frame at after is gone: the
// end behind which the next incarnation begins, with lost set. lost is false if no incarnation began behind an earlier
// frame; then the log is damaged. Its error is that of the log.
func ResumeAfterLoss(ctx context.Context, log Log, partition string, after End) (end End, lost bool,
	err error,
) {
	err = log.Scan(ctx, after.Seq+1, func(seq uint64, f Frame) error {
		behind, begins := BeginsBehind(partition, seq, f)
		if begins && f.Link.Incarnation > after.Incarnation && f.Link.First > after.WalSeq && behind.Seq < after.Seq {
			end, lost = behind, true
		}
		return errFound // only the first frame counts: behind frames that were given up it begins an incarnation
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return end, lost, err
}
