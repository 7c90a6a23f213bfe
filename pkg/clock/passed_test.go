//go:build clockstep

package clock

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPassed: when time has passed beyond the machine's clock, all of a process agrees that it has.
func TestPassed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passed")
	say := func(d time.Duration) {
		require.NoError(t, os.WriteFile(file+".new", []byte(d.String()), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	before := passed
	passed = &skipped{file: file}
	defer func() { passed = before }()
	c := System()
	since := Monotonic(c)
	wall, mono := c.Now(), since()
	due, later := c.TimerAt(wall.Add(24*time.Hour)), c.TimerAt(wall.Add(72*time.Hour))
	called := make(chan struct{})
	AfterFunc(c, 24*time.Hour, func() { close(called) })
	stopped := c.TimerAt(wall.Add(24 * time.Hour))
	require.True(t, stopped.Stop())

	say(25 * time.Hour)
	<-due.C()
	<-called
	require.GreaterOrEqual(t, c.Now().Sub(wall), 25*time.Hour)
	require.Less(t, c.Now().Sub(wall), 26*time.Hour)
	require.GreaterOrEqual(t, since().Sub(mono), 25*time.Hour)
	require.Empty(t, later.C())
	require.Empty(t, stopped.C())

	say(time.Hour) // it does not become shorter
	say(80 * time.Hour)
	<-later.C()
	require.GreaterOrEqual(t, c.Now().Sub(wall), 80*time.Hour)
}
