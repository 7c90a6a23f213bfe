package confine

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refusedCalls are system calls that commands do not need and attacks do: they make namespaces
// and mounts, change the kernel, or have a history of flaws.
var refusedCalls = []string{
	"unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen",
	"fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "chroot",
	"keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load",
	"init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
	"open_by_handle_at", "name_to_handle_at", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"quotactl", "quotactl_fd", "swapon", "swapoff", "reboot", "acct", "settimeofday", "clock_settime", "adjtimex",
	"clock_adjtime", "iopl", "ioperm", "lookup_dcookie", "vhangup", "nfsservctl", "syslog", "fanotify_init",
	"fanotify_mark", "uselib", "_sysctl", "process_madvise", "process_mrelease",
}

// sharedIPC are the system calls of System V IPC and message queues that have a name or a number. Without an IPC
// namespace that is one of the host: each of them reaches what is there without any other, since numbers can be
// guessed.
var sharedIPC = []string{
	"shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl",
	"mq_open", "mq_unlink",
}

// newNamespaces are the flags of clone that make a namespace.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// refusal is a way to call the kernel that is refused.
type refusal struct {
	call  string // its name
	errno unix.Errno
	when  []condition // the call is refused if all of them hold; empty: always
}

// condition is a condition on an argument of a call. Except for isPointer it is about an int of the kernel, and so
// about the lower 32 bits of the argument; see program for the upper ones.
type condition struct {
	argument int
	test     test
	value    uint32
}

type test int

const (
	is        test = iota // the argument is the value
	isNot                 // it is another one
	isAbove               // it is larger than the value, as unsigned numbers
	hasAny                // it has any of the bits of the value
	isPointer             // it is a pointer other than NULL
)

// ioprioWhoProcessGroup is IOPRIO_WHO_PGRP of the kernel.
const ioprioWhoProcessGroup = 2

// refusals returns what the commands of a policy may not call, in the order in which it is examined.
func refusals(p *Policy) (list []refusal) {
	refuse := func(call string, errno unix.Errno, when ...condition) {
		list = append(list, refusal{call, errno, when})
	}
	for _, call := range refusedCalls {
		refuse(call, unix.EPERM)
	}
	// A filter cannot read clone3's arguments; without it, programs use clone.
	refuse("clone3", unix.ENOSYS)
	refuse("clone", unix.EPERM, condition{0, hasAny, newNamespaces})
	refuse("ioctl", unix.EPERM, condition{1, is, unix.TIOCSTI})
	refuse("ioctl", unix.EPERM, condition{1, is, unix.TIOCLINUX})

	// RLIMIT_RTTIME is the mark by which the processes of a command are found (see package proctree). The limits and
	// the scheduling of other processes include those of the helper.
	refuse("setrlimit", unix.EPERM, condition{0, is, unix.RLIMIT_RTTIME})
	refuse("prlimit64", unix.EPERM, condition{1, is, unix.RLIMIT_RTTIME}, condition{2, isPointer, 0})
	for _, call := range []string{
		"prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "migrate_pages",
		"move_pages",
	} {
		refuse(call, unix.EPERM, condition{0, isNot, 0})
	}
	// The first argument says whose priority it is: a process's, a process group's or, above these, a user's.
	refuse("setpriority", unix.EPERM, condition{0, isAbove, unix.PRIO_PGRP})
	refuse("setpriority", unix.EPERM, condition{1, isNot, 0})
	refuse("ioprio_set", unix.EPERM, condition{0, isAbove, ioprioWhoProcessGroup})
	refuse("ioprio_set", unix.EPERM, condition{1, isNot, 0})
	refuse("prctl", unix.EPERM, condition{0, is, unix.PR_SCHED_CORE})

	if p.Level == LevelLandlock { // there is no IPC namespace
		for _, call := range sharedIPC {
			refuse(call, unix.EPERM)
		}
	}
	return append(list, refusedSockets(p)...)
}

// refusedSockets returns the sockets that the commands of a policy may not make: those of all families but the usual
// ones, many of which have no namespaces.
func refusedSockets(p *Policy) (list []refusal) {
	families := []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	if p.Level == LevelLandlock {
		// Landlock does not confine sockets that have a path, such as a container daemon's.
		families = families[1:]
		if p.Network == NetworkNone {
			families = nil
		}
		// The pairs of AF_UNIX remain. One of datagrams (SOCK_DGRAM, and SOCK_RAW is the same) can send to any path.
		list = append(list, refusal{"socketpair", unix.EAFNOSUPPORT, []condition{{1, hasAny, unix.SOCK_DGRAM}}})
	}
	other := make([]condition, 0, len(families))
	for _, family := range families {
		other = append(other, condition{0, isNot, family})
	}
	return append(
		list, refusal{"socket", unix.EAFNOSUPPORT, other},
		refusal{"socketpair", unix.EAFNOSUPPORT, []condition{{0, isNot, unix.AF_UNIX}}},
		// Of netlink, programs need interfaces and routes. Other protocols reach daemons and the kernel's subsystems.
		refusal{"socket", unix.EAFNOSUPPORT, []condition{
			{0, is, unix.AF_NETLINK}, {2, isNot, unix.NETLINK_ROUTE},
		}},
	)
}

// Offsets in struct seccomp_data of the kernel. Each argument has 64 bits, on the supported architectures the lower
// ones first.
const (
	callOffset     = 0
	archOffset     = 4
	argumentOffset = 16
)

// x32Bit is in the numbers of the calls of x32, which is an ABI of its own with the audit architecture of x86-64.
const x32Bit = 0x40000000

// program returns the system call filter of a policy for an architecture.
//
//   - Calls of any other ABI of the machine, such as that of 32-bit programs, are refused, and so are calls that the
//     table of the architecture does not have: newer ones of the kernel, and those of x32.
//   - Where the kernel takes an int, it ignores the upper 32 bits of an argument. They are refused if the filter
//     examines the argument, unless they extend the sign of a negative number, as C libraries do.
func program(p *Policy, a *arch.Info) ([]bpf.Instruction, error) {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.ID), SkipTrue: 1},
		refuseWith(unix.ENOSYS),
		bpf.LoadAbsolute{Off: callOffset, Size: 4},
	}
	for _, gap := range unknownNumbers(a) {
		prog = append(
			prog,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: gap.first, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: gap.last, SkipTrue: 1},
			refuseWith(unix.ENOSYS),
		)
	}
	for _, b := range blocksOf(refusals(p), a) {
		if len(b.code) > maxSkip {
			return nil, fmt.Errorf("the conditions of call %d have %d instructions", b.number, len(b.code))
		}
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: b.number, SkipTrue: uint8(len(b.code))})
		prog = append(prog, b.code...)
	}
	return append(prog, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}), nil
}

// maxSkip is how many instructions a conditional jump can skip.
const maxSkip = 1<<8 - 1

// block examines one call.
type block struct {
	number uint32
	code   []bpf.Instruction // every path through it returns
}

// blocksOf returns a block for each call with refusals. Calls that the architecture does not have are left out: their
// numbers are refused as unknown.
func blocksOf(list []refusal, a *arch.Info) (blocks []block) {
	calls := make(map[string][]refusal)
	var order []string
	for _, r := range list {
		if calls[r.call] == nil {
			order = append(order, r.call)
		}
		calls[r.call] = append(calls[r.call], r)
	}
	for _, call := range order {
		number, known := a.SyscallNames[call]
		if !known {
			continue
		}
		var widths, code []bpf.Instruction
		examined := make(map[int]bool) // the arguments that are examined as int
		for _, r := range calls[call] {
			for _, c := range r.when {
				if c.test != isPointer && !examined[c.argument] {
					examined[c.argument] = true
					widths = append(widths, refuseWide(c.argument)...)
				}
			}
			code = append(code, r.code()...)
		}
		// Behind a refusal without conditions it is never reached.
		code = append(code, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
		blocks = append(blocks, block{uint32(number), append(widths, code...)})
	}
	return blocks
}

// code returns the instructions that refuse a call if all conditions hold, and otherwise continue behind them.
func (r *refusal) code() []bpf.Instruction {
	code := []bpf.Instruction{refuseWith(r.errno)}
	for _, c := range slices.Backward(r.when) {
		code = append(c.code(uint8(len(code))), code...)
	}
	return code
}

// code returns the instructions that skip the number of instructions behind them unless the condition holds.
func (c *condition) code(skip uint8) []bpf.Instruction {
	low := bpf.LoadAbsolute{Off: argumentOffset + 8*uint32(c.argument), Size: 4}
	high := bpf.LoadAbsolute{Off: low.Off + 4, Size: 4}
	switch c.test {
	case is:
		return []bpf.Instruction{low, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.value, SkipTrue: skip}}
	case isNot:
		return []bpf.Instruction{low, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipTrue: skip}}
	case isAbove:
		return []bpf.Instruction{low, bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: c.value, SkipTrue: skip}}
	case hasAny:
		return []bpf.Instruction{low, bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: c.value, SkipTrue: skip}}
	default: // isPointer
		return []bpf.Instruction{
			low,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, SkipTrue: 2},
			high,
			bpf.JumpIf{Cond: bpf.JumpEqual, SkipTrue: skip},
		}
	}
}

// refuseWide returns the instructions that refuse a call whose argument, an int, has upper bits that the kernel would
// ignore.
func refuseWide(argument int) []bpf.Instruction {
	low := argumentOffset + 8*uint32(argument)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: low + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 1<<32 - 1, SkipTrue: 2},
		bpf.LoadAbsolute{Off: low, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 1 << 31, SkipTrue: 1},
		refuseWith(unix.EINVAL),
	}
}

// refuseWith returns the instruction that refuses a call with an error number.
func refuseWith(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// numbers are the numbers from first to last.
type numbers struct{ first, last uint32 }

// unknownNumbers returns the numbers of calls that the table of an architecture does not have.
func unknownNumbers(a *arch.Info) (unknown []numbers) {
	next := uint32(0) // no number below it is unknown, or is in the result
	for _, n := range slices.Sorted(func(yield func(uint32) bool) {
		for n := range a.SyscallNumbers {
			if !yield(uint32(n)) {
				return
			}
		}
	}) {
		if n > next {
			unknown = append(unknown, numbers{next, n - 1})
		}
		next = n + 1
	}
	return append(unknown, numbers{next, 1<<32 - 1})
}

// loadFilter permanently applies the system call filter of a policy to the calling thread, which must have
// no_new_privs, and to the processes that it starts.
func loadFilter(p *Policy) error {
	native, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	prog, err := program(p, native)
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	load := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	program := uintptr(unsafe.Pointer(&load)) //nolint:gosec // the call takes an address
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, program)
	if errno != 0 {
		return errno
	}
	return nil
}
