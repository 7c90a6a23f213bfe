package lease

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// process names this process among all of its machine: by the kernel's run, the
// container, the number and the moment it began. "" where that cannot be told.
func process() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || err2 != nil {
		return ""
	}
	began, ok := started(os.Getpid())
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s/%s/%d/%s", strings.TrimSpace(string(boot)), ns, os.Getpid(), began)
}

// over says for certain that a process is no more: nobody has to wait for its
// term to end. One of another machine or container is never known to be.
func over(other, own string) bool {
	a, b := strings.Split(other, "/"), strings.Split(own, "/")
	if other == own || len(a) != 4 || len(b) != 4 || a[0] != b[0] || a[1] != b[1] {
		return false
	}
	var pid int
	if _, err := fmt.Sscan(a[2], &pid); err != nil {
		return false
	}
	began, lives := started(pid)
	return !lives || began != a[3]
}

// started is when a process began, in the kernel's ticks; false if there is none,
// or nothing of it but its number.
func started(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The name may hold anything, so what follows is found from its end.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", false
	}
	return fields[19], true
}
