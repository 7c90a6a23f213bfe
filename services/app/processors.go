package app

import (
	"os"
	"runtime"
	"sync"
)

var processors sync.Once

// MoreProcessors lets one goroutine more run at a time than Go would by itself:
// the one that waits in the journal's fsync keeps its place for as long as the
// runtime does not notice. With two processors one of them stood still for half
// of the time that 256 callers kept the other busy. It leaves the setting of an
// operator who gave GOMAXPROCS alone, and is done once in a process.
func MoreProcessors() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	processors.Do(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) })
}
