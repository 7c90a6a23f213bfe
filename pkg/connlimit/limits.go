package connlimit

import "time"

// Limits are the limits of a Listener. A field that is not positive means its default.
type Limits struct {
	// Total is the largest number of connections, default DefaultTotal. When it is reached, a new
	// connection replaces an unproven one, or is closed if all are proven.
	Total int
	// PerSource is the largest number of connections of one source address, or of one /64 network
	// of IPv6. Default: half of Total.
	PerSource int
	// Unproven is how many unproven connections may be older than Grace. Default 128.
	Unproven int
	// Burst is the largest number of unproven connections. Default 1024.
	Burst int
	// Grace is the age at which an unproven connection may be closed to make room while there are
	// fewer than Burst. Default 2 s.
	Grace time.Duration
	// Idle is how long an unproven connection may be without a call. Default 1 min.
	Idle time.Duration
	// Free is how many bytes are read from an unproven connection at once, and Rate how many more
	// per second: the rest stays in the caller's buffers. A call counts as CallCost bytes more.
	// Defaults 40 KiB and 1 KiB.
	Free, Rate int64
	// Calls is how many calls may be in progress on an unproven connection. While there are so many,
	// nothing is read from it. Default 16.
	Calls int
	// Refusals is the number of refused calls after which nothing more is read from an unproven
	// connection and it is closed. Default 8.
	Refusals int
}

// DefaultTotal is the default of Limits.Total.
const DefaultTotal = 10_000

// CallCost is for how many bytes a call on an unproven connection counts in addition to its size, so
// that many small calls cannot circumvent Limits.Free.
const CallCost = 2 << 10

const (
	// sweepPeriod is how often connections beyond the limits are looked for.
	sweepPeriod = 500 * time.Millisecond
	// readMax is how much is read at once from an unproven connection, so that a burst of small
	// frames does not become as many calls before the first one is refused.
	readMax = 1 << 10
	// readMin is to how many bytes a used-up budget must grow before the connection is read again. With 128 such
	// connections and steps of one kilobyte, the process would wake up every 8 ms.
	readMin = 4 << 10
	// partingTime is how long a connection with too many refusals stays open, so that its caller
	// can read the last one.
	partingTime = time.Second
)

// complete sets the defaults.
func (l Limits) complete() Limits {
	defaults := func(n *int, value int) {
		if *n <= 0 {
			*n = value
		}
	}
	defaults(&l.Total, DefaultTotal)
	defaults(&l.PerSource, (l.Total+1)/2)
	defaults(&l.Unproven, 128)
	defaults(&l.Burst, 1024)
	defaults(&l.Calls, 16)
	defaults(&l.Refusals, 8)
	if l.Grace <= 0 {
		l.Grace = 2 * time.Second
	}
	if l.Idle <= 0 {
		l.Idle = time.Minute
	}
	if l.Free <= 0 {
		l.Free = 40 << 10
	}
	if l.Rate <= 0 {
		l.Rate = 1 << 10
	}
	return l
}
