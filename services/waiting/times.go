package waiting

import (
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/pbjson"
)

const (
	// horizon is how far from now a time may lie, whether it is given as a time
	// or as a span.
	horizon = fault.Horizon
	// Shortest is the shortest period of a timer. Each fire may cause a turn, so a
	// shorter one is of no use to an agent.
	Shortest = time.Second
)

// validSpan returns INVALID_ARGUMENT if d is malformed, and LIMIT_EXCEEDED if it is shorter than least
// or longer than 100 years, the horizon. nil is valid.
func validSpan(field string, d *durationpb.Duration, least time.Duration) error {
	if d == nil {
		return nil
	}
	if s, n := d.GetSeconds(), d.GetNanos(); n <= -1e9 || n >= 1e9 || s > 0 && n < 0 || s < 0 && n > 0 {
		return fault.Invalid(field, d.String(), "must be a duration of "+least.String()+
			" to 100 years: seconds and nanoseconds of one sign, less than 1e9 of these")
	}
	if v := d.AsDuration(); v < least || v > horizon || d.GetSeconds() > int64(horizon/time.Second) {
		text := v.String()
		if v == math.MaxInt64 || v == math.MinInt64 { // Go's durations end at 292 years
			text = strconv.FormatInt(d.GetSeconds(), 10) + "s"
		}
		return fault.LimitExceeded.Newf("%s is %s; it must be %s to 100 years (876000h)", field, text, least).
			With("field", field).With("value", text).WithField(field, "must be "+least.String()+" to 100 years")
	}
	return nil
}

// validTime requires exactly one of after and timestamp, which is the field at; a periodic timer may have neither, but
// not both. after must be 0 to 100 years. How far timestamp may be from now is checked by the rule,
// which knows now.
func validTime(after *durationpb.Duration, timestamp *timestamppb.Timestamp, periodic bool) error {
	switch {
	case after != nil && timestamp != nil:
		return fault.InvalidArgument.New("after and at are both given; give one of them").
			WithField("after", "only one of after and at").WithField("at", "only one of after and at")
	case after == nil && timestamp == nil && !periodic:
		return fault.InvalidArgument.New("no time is given; give after (such as 300s) or at (such as "+
			"2026-01-31T17:00:00Z)").
			WithField("after", "one of after and at is required").WithField("at", "one of after and at is required")
	case timestamp != nil && timestamp.CheckValid() != nil:
		return fault.Invalid("at", timestamp.String(), "must be a time between the years 1 and 9999")
	}
	return validSpan("after", after, 0)
}

// within refuses a time farther in the future than the horizon or, if past is set, one
// farther in the past. timestamp may be nil.
func within(field string, now time.Time, timestamp *timestamppb.Timestamp, past bool) error {
	switch t := timestamp.AsTime(); {
	case timestamp == nil:
	case past && t.Before(now.Add(-horizon)):
		return fault.LimitExceeded.Newf("%s is %s; the first time of a repeating timer must be at most 100 years ago",
			field, t.Format(time.RFC3339)).
			With("field", field).With("value", t.Format(time.RFC3339)).WithField(field, "must be at most 100 years ago")
	default:
		return fault.Ahead(field, now, t)
	}
	return nil
}

// dueAt returns the time that is after from now, or, if after is nil, timestamp. Exactly one
// of them is given.
func dueAt(now time.Time, after *durationpb.Duration, timestamp *timestamppb.Timestamp) *timestamppb.Timestamp {
	if after != nil {
		return pbjson.Timestamp(now.Add(after.AsDuration()))
	}
	return pbjson.Timestamp(timestamp.AsTime())
}
