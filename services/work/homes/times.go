package homes

import (
	"io/fs"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// fixedTime is what is shown for every file while it is set.
var fixedTime atomic.Pointer[time.Time]

// FixTimes makes t the time that is shown for every file, until the returned function is called. The times of files
// are the operating system's; a simulation, whose journals must not depend on when it runs, cannot show them.
func FixTimes(t time.Time) (restore func()) {
	fixedTime.Store(&t)
	return func() { fixedTime.Store(nil) }
}

// shownTime returns when a file was changed, as it is shown.
func shownTime(st fs.FileInfo) *timestamppb.Timestamp {
	if t := fixedTime.Load(); t != nil {
		return timestamppb.New(*t)
	}
	return timestamppb.New(st.ModTime().UTC())
}
