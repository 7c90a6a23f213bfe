package proctree

import (
	"crypto/sha256"
	"encoding/binary"
	"os/exec"
	"sync"
)

// Mark is the number of a tree: a leading one bit, 28 bits for the owner (a hundred
// workers on one machine share a value with probability 1 in 50 000), 14 for the
// owner's boot and 20 for the tree.
type Mark uint64

const (
	ownerBits  = 28
	bootBits   = 14
	treeBits   = 20
	treeMask   = 1<<treeBits - 1
	bootShift  = treeBits
	ownerShift = treeBits + bootBits
	leading    = 1 << (treeBits + bootBits + ownerBits)
)

// owner returns m without the bits of the boot and of the tree.
func (m Mark) owner() Mark { return m &^ (1<<ownerShift - 1) }

// boot returns m without the bits of the tree.
func (m Mark) boot() Mark { return m &^ treeMask }

// firstMark returns the Mark with tree number 0 of a boot.
func firstMark(owner, boot string) Mark {
	part := func(s string, bits int) uint64 {
		sum := sha256.Sum256([]byte(s))
		return binary.BigEndian.Uint64(sum[:]) >> (64 - bits)
	}
	return Mark(leading | part(owner, ownerBits)<<ownerShift | part(boot, bootBits)<<bootShift)
}

// forking is held while a process is started. On Linux this process has the mark of a tree
// while the tree's leader is started, and any process that it forked meanwhile would inherit the mark.
var forking sync.Mutex

// StartUnmarked starts cmd as a process of no tree. While a program has a Host, it must start
// each process of its own with StartUnmarked: with cmd.Start, a process that is started at the
// same moment as a tree belongs to that tree and is killed with it.
func StartUnmarked(cmd *exec.Cmd) error {
	forking.Lock()
	defer forking.Unlock()
	return cmd.Start()
}
