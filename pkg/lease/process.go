package lease

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// process returns an identifier of this process that is unique on its machine: boot id,
// container, process id and start time. It is empty where these cannot be determined.
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

// over reports whether a process has ended as far as /proc shows it, so that its term need not
// be waited for. It returns false for processes of other machines and containers.
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

// started returns the start time of a process, in clock ticks since boot, and false if /proc
// does not show the process, or shows it as a zombie.
func started(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The name in parentheses may contain any character, so fields are counted from its end.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", false
	}
	return fields[19], true
}
