package app

import (
	"os"
	"strconv"
	"strings"
)

// memoryOfMachine returns how many bytes of memory the machine has, or the control group of this process may use,
// whichever is less; 0 if the system does not say. Only Linux says it.
func memoryOfMachine() uint64 {
	var most uint64
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
				kib, _ := strconv.ParseUint(fields[1], 10, 64) // 0 is unknown
				most = kib << 10
			}
		}
	}
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64); err == nil && (most == 0 || n < most) {
			most = n
		}
	}
	return most
}
