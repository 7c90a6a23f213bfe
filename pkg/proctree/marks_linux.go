package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// errUnmarked means that this process may not set the limit that carries marks.
var errUnmarked = errors.New("proctree: the hard limit on real time (RLIMIT_RTTIME) is too low to mark processes; it " +
	"must be unlimited")

// withMark calls f while the soft RLIMIT_RTTIME of this process is m, so that a process which f
// starts has that mark. It returns errUnmarked if the limit cannot be set.
func withMark(m Mark, f func() error) error {
	forking.Lock()
	defer forking.Unlock()
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &before); err != nil {
		return fmt.Errorf("proctree: read a limit: %w", err)
	}
	if before.Max < math.MaxInt64 {
		return errUnmarked
	}
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: uint64(m), Max: before.Max}, nil); err != nil {
		return fmt.Errorf("proctree: set a limit: %w", err)
	}
	err := f()
	return errors.Join(err, unix.Prlimit(0, unix.RLIMIT_RTTIME, &before, nil))
}

var limitName = []byte("\nMax realtime timeout")

// markOf returns the mark of a process, of any owner; 0 if the process has none or has ended. buf is
// scratch space, which must have room for /proc/PID/limits.
func markOf(pid int, buf []byte) Mark {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	n, err := f.Read(buf) // procfs returns the file in one read
	_ = f.Close()         // nothing was written
	if err != nil {
		return 0
	}
	_, rest, ok := bytes.Cut(buf[:n], limitName)
	if !ok {
		return 0
	}
	fields := bytes.Fields(rest[:min(len(rest), 64)])
	if len(fields) == 0 {
		return 0
	}
	v, err := strconv.ParseUint(string(fields[0]), 10, 64)
	if err != nil || v&leading == 0 || v >= 2*leading {
		return 0
	}
	return Mark(v)
}
