package proctree

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Mark is the number of a tree of processes: 28 bits for whose it is, so that a
// hundred workers of a host share one by a chance of 1 in 50 000; 14 for the life
// of that, 20 for the tree, and a leading one.
type Mark uint64

const (
	ownBits   = 28
	lifeBits  = 14
	treeBits  = 20
	treeMask  = 1<<treeBits - 1
	lifeShift = treeBits
	ownShift  = treeBits + lifeBits
	leading   = 1 << (treeBits + lifeBits + ownBits)
)

// owners gives the part of a mark that says whose it is.
func (m Mark) owner() Mark { return m &^ (1<<ownShift - 1) }

// life gives the parts that say whose it is and in which life.
func (m Mark) life() Mark { return m &^ treeMask }

// firstMark is the mark before the first tree of a life.
func firstMark(owner, life string) Mark {
	part := func(s string, bits int) uint64 {
		sum := sha256.Sum256([]byte(s))
		return binary.BigEndian.Uint64(sum[:]) >> (64 - bits)
	}
	return Mark(leading | part(owner, ownBits)<<ownShift | part(life, lifeBits)<<lifeShift)
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
