package homes

import (
	"io/fs"
	"syscall"
	"time"
)

// changedAt returns when a file's content or attributes were last changed. Unlike the
// time of modification, no program can set it. It returns the zero time if the system does not tell.
func changedAt(st fs.FileInfo) time.Time {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(sys.Ctim.Unix())
	}
	return time.Time{}
}
