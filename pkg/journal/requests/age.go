package requests

import "time"

// Ages is the time by which requests become old. It begins with the machine's clock and then advances with the
// monotonic clock, so a clock that is set forward makes no request older than it is, and one that is set back none
// younger.
type Ages struct {
	wall  time.Time
	began time.Time
	mono  func() time.Time
}

// NewAges returns the Ages of a process whose clock shows wall. mono must not go back.
func NewAges(wall time.Time, mono func() time.Time) Ages {
	return Ages{wall: wall, began: mono(), mono: mono}
}

// Now returns the present time.
func (a Ages) Now() time.Time { return a.wall.Add(a.mono().Sub(a.began)) }

// Of returns the time from which the age of something counts that the log says was written at written: written
// itself, or now if that is in the future, since the writer's clock was ahead.
func (a Ages) Of(written time.Time) time.Time {
	if now := a.Now(); written.After(now) {
		return now
	}
	return written
}
