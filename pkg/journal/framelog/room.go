package framelog

import (
	"sync/atomic"

	"quartet/pkg/fault"
)

// RoomLevel is how full a store is.
type RoomLevel int

// The levels. Unknown means that the limit of the store is not known.
const (
	RoomUnknown RoomLevel = iota
	RoomEnough
	RoomNoted // at least notedPercent of the store are in use
	RoomHigh  // at least highPercent
	RoomFull  // only the reserve is left, and new records are refused
)

// The percentages of a store that are in use from which a warning is given.
const (
	notedPercent = 70
	highPercent  = 85
)

// Bounds of the reserve, in bytes.
const (
	minReserve = 8 << 20
	maxReserve = 1 << 30
)

// RoomReserve returns how much of a store with a limit, in bytes, is kept: a twentieth, but at least 8 MiB and at most
// 1 GiB, and never more than an eighth.
func RoomReserve(limit int64) int64 {
	return min(max(limit/20, minReserve), maxReserve, limit/8)
}

// Room is how much of the store of the journals is in use. A part of it, the reserve, is kept for what must be possible
// when the rest is in use: opening a partition, and what ends or removes something. It is shared by all partitions of a
// process, and safe for concurrent use. A nil Room, and one that was not measured, has room for everything.
type Room struct {
	// Remedy says how an operator makes room, in words that continue a sentence. It is set before use.
	Remedy   string
	state    atomic.Pointer[RoomState]
	written  atomic.Int64 // by this process since the beginning of the last measurement
	refusing atomic.Bool  // the broker refused the last append for want of space
}

// RoomState is what a measurement found, in bytes.
type RoomState struct {
	Used  int64
	Limit int64 // 0: not known
	// Refusing says that the broker refused the last append for want of space, whatever the limit is.
	Refusing bool
}

// Measure replaces the state by what measure returns. If measure fails, the state stays, and Measure returns the
// error. Measurements must not overlap. What this process writes while measure runs may count twice until the next
// measurement.
func (r *Room) Measure(measure func() (RoomState, error)) error {
	writtenBefore := r.written.Load()
	s, err := measure()
	if err != nil {
		return err
	}
	r.state.Store(&s)
	r.written.Add(-writtenBefore)
	return nil
}

// Wrote counts bytes that this process stored.
func (r *Room) Wrote(n int) {
	if r != nil {
		r.written.Add(int64(n))
	}
}

// Now returns the last measurement with what was written since.
func (r *Room) Now() RoomState {
	if r == nil {
		return RoomState{}
	}
	now := RoomState{Refusing: r.refusing.Load()}
	if s := r.state.Load(); s != nil {
		now.Used, now.Limit = s.Used+r.written.Load(), s.Limit
	}
	return now
}

// Used returns how much of the store is in use, and how much it can hold; 0 if that is not known.
func (r *Room) Used() (used, limit int64) {
	now := r.Now()
	return now.Used, now.Limit
}

// SetRefusing records whether the broker refused the last append of any partition of this process for want of space. It
// is cheap if nothing changes.
func (r *Room) SetRefusing(refusing bool) {
	if r.refusing.Load() != refusing {
		r.refusing.Store(refusing)
	}
}

// Refusing reports what SetRefusing recorded.
func (r *Room) Refusing() bool { return r.refusing.Load() }

// Level returns how full a store in this state is.
func (s RoomState) Level() RoomLevel {
	switch {
	case s.Refusing:
		return RoomFull
	case s.Limit <= 0:
		return RoomUnknown
	case s.Used > s.Limit-RoomReserve(s.Limit):
		return RoomFull
	case s.Used >= s.Limit/100*highPercent:
		return RoomHigh
	case s.Used >= s.Limit/100*notedPercent:
		return RoomNoted
	}
	return RoomEnough
}

// Percent returns which part of the store is in use, 0 if the limit is not known.
func (s RoomState) Percent() int {
	if s.Limit <= 0 {
		return 0
	}
	return int(s.Used * 100 / s.Limit)
}

// Check returns STORAGE_FULL if size more bytes may not be stored, as far as was measured, and nil if the limit is not
// known. If frees is set, they may use three quarters of the reserve. Check does not look at Refusing.
func (r *Room) Check(size int, frees bool) error {
	s := r.Now()
	if s.Limit <= 0 {
		return nil
	}
	kept := RoomReserve(s.Limit)
	if frees {
		kept /= 4
	}
	if s.Used+int64(size) <= s.Limit-kept {
		return nil
	}
	return fault.StorageFull.Newf("the store of the journals is full: %d of %d MiB are in use, and %.1f MiB are kept "+
		"for what ends or removes something; nothing was stored. %s, then send the request again",
		s.Used>>20, s.Limit>>20, float64(RoomReserve(s.Limit))/(1<<20), r.Remedy).With("outcome", "none")
}

// Full reports whether Check refuses everything that frees nothing.
func (r *Room) Full() bool { return r.Check(0, false) != nil }

// Refused returns the STORAGE_FULL for an append that the broker refused for want of space.
func (r *Room) Refused() error {
	remedy := "Make room on the disk of the NATS servers or raise their limits"
	if r != nil && r.Remedy != "" {
		remedy = r.Remedy
	}
	return fault.StorageFull.Newf("the broker refused to store more, because its store is full; nothing was stored. "+
		"%s, then send the request again", remedy).With("outcome", "none")
}
