package attack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cost returns the resident memory of a process in bytes, and its processor time.
func Cost(pid int) (memory int, cpu time.Duration, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	if err != nil {
		return 0, 0, err
	}
	var used unix.Timespec
	err = unix.ClockGettime(int32(^pid<<3|2), &used) // what clock_getcpuclockid returns for the process
	return pages * os.Getpagesize(), time.Duration(used.Nano()), err
}
