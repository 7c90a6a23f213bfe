package work

import (
	"io/fs"
	"syscall"
	"time"
)

// changedAt is when a file's content or its times were last written: nobody can
// set it back.
func changedAt(st fs.FileInfo) time.Time {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(sys.Ctim.Unix())
	}
	return time.Time{}
}
