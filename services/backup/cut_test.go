package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestACutNeedsAClockThatDoesNotGoBack: the times of messages say what was stored before what, unless the clock was set
// back.
func TestACutNeedsAClockThatDoesNotGoBack(t *testing.T) {
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	c := cut{at: noon, ends: map[string]end{"s": {seq: 10, asked: noon.Add(-time.Millisecond)}}}
	for name, m := range map[string]struct {
		seq    uint64
		stored time.Time
		in     bool
		wrong  string
	}{
		"before it":                     {10, noon.Add(-time.Hour), true, ""},
		"an older step back":            {5, noon.Add(-2 * time.Hour), true, ""},
		"at the moment":                 {11, noon, true, ""},
		"while the ends were asked for": {11, noon.Add(-time.Microsecond), true, ""},
		"after it":                      {11, noon.Add(time.Microsecond), false, ""},
		"stored before, by a clock ahead": {
			9, noon.Add(time.Hour), false,
			"try again after 2026-03-04T13:00:00Z",
		},
		"stored after, by a clock that is back": {
			12, noon.Add(-time.Hour), false,
			"set back while the backup was made",
		},
	} {
		in, err := c.includes("s", m.seq, m.stored)
		require.Equal(t, m.in, in, name)
		if m.wrong == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, m.wrong, name)
		}
	}
}
