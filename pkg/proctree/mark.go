package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Mark is the number of a tree of processes: 20 bits for whose it is, 20 for the
// life of that, 20 for the tree, and a leading one.
type Mark uint64

const (
	partBits  = 20
	partMask  = 1<<partBits - 1
	lifeShift = partBits
	ownShift  = 2 * partBits
	leading   = 1 << (3 * partBits)
)

// owners gives the part of a mark that says whose it is.
func (m Mark) owner() Mark { return m &^ (1<<ownShift - 1) }

// life gives the parts that say whose it is and in which life.
func (m Mark) life() Mark { return m &^ partMask }

// firstMark is the mark before the first tree of a life.
func firstMark(owner, life string) Mark {
	part := func(s string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s)) // cannot fail
		v := h.Sum64()
		return (v ^ v>>partBits ^ v>>(2*partBits)) & partMask
	}
	return Mark(leading | part(owner)<<ownShift | part(life)<<lifeShift)
}

// forking is held while a tree's first process is forked: limits are the whole
// process's, and whoever forks at that moment hands them on.
var forking sync.Mutex

// errUnmarked: this process must not set the limit that marks are.
var errUnmarked = errors.New("proctree: the hard limit on real time (RLIMIT_RTTIME) is too low to mark processes; it must be unlimited")

// marked runs f with the limit of this process set to m.
func marked(m Mark, f func() error) error {
	forking.Lock()
	defer forking.Unlock()
	var was unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &was); err != nil {
		return fmt.Errorf("proctree: read a limit: %w", err)
	}
	if was.Max < math.MaxInt64 {
		return errUnmarked
	}
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: uint64(m), Max: was.Max}, nil); err != nil {
		return fmt.Errorf("proctree: set a limit: %w", err)
	}
	err := f()
	return errors.Join(err, unix.Prlimit(0, unix.RLIMIT_RTTIME, &was, nil))
}

var limitName = []byte("\nMax realtime timeout")

// markOf reads the mark of a process; 0: it has none, or is gone. buf is for reuse.
func markOf(pid int, buf []byte) Mark {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	n, err := f.Read(buf) // the kernel gives it whole
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
