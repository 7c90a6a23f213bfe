package confine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// way is a system call that a profile must refuse. The kernel takes the first ints arguments as int.
type way struct {
	call string
	args [6]uint64
	ints int
}

const somewhere = 0x1000 // a pointer; the filter does not follow it

// ways returns what commands of a profile must not call, for arguments that a 32-bit ABI has as well.
func ways(p profile) (list []way) {
	add := func(call string, ints int, args ...uint64) {
		w := way{call: call, ints: ints}
		copy(w.args[:], args)
		list = append(list, w)
	}
	for _, call := range confine.RefusedCalls {
		add(call, 3)
		add(call, 3, 1, 1, 1)
	}
	add("clone3", 0, somewhere, 88)
	for _, flag := range []uint64{
		unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC,
		unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP,
	} {
		add("clone", 1, flag)
		add("clone", 1, flag|uint64(unix.SIGCHLD))
		add("clone", 1, flag|unix.CLONE_VM|unix.CLONE_VFORK|uint64(unix.SIGCHLD))
	}
	add("ioctl", 2, 0, unix.TIOCSTI, somewhere)
	add("ioctl", 2, 0, unix.TIOCLINUX, somewhere)

	// The mark of a command's processes.
	add("setrlimit", 1, unix.RLIMIT_RTTIME, somewhere)
	add("prlimit64", 2, 0, unix.RLIMIT_RTTIME, somewhere)
	// Other processes, and all of a user.
	for _, pid := range []uint64{1, 2, math.MaxInt32, 1<<32 - 1} {
		for _, call := range []string{
			"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "migrate_pages", "move_pages",
		} {
			add(call, 1, pid, 8, somewhere)
		}
		for resource := range uint64(16) {
			add("prlimit64", 2, pid, resource, somewhere)
			add("prlimit64", 2, pid, resource, 0, somewhere)
		}
		add("setpriority", 2, unix.PRIO_PROCESS, pid, 19)
		add("setpriority", 2, unix.PRIO_PGRP, pid, 19)
		add("ioprio_set", 2, 1, pid, 3<<13)
		add("ioprio_set", 2, 2, pid, 3<<13)
	}
	add("setpriority", 2, unix.PRIO_USER, 0, 19)
	add("ioprio_set", 2, 3, 0, 3<<13)
	add("prctl", 1, unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_SHARE_FROM, 1)

	if p.level == confine.LevelLandlock {
		for _, call := range confine.SharedIPC {
			add(call, 1)
			add(call, 1, 1, 1, 1)
			add(call, 1, 1<<32-1, 1, 1)
		}
		add("socketpair", 3, unix.AF_UNIX, unix.SOCK_DGRAM, 0, somewhere)
		add("socketpair", 3, unix.AF_UNIX, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0, somewhere)
	}
	allowed := families(p)
	for family := range uint64(64) {
		for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			if !slices.Contains(allowed, family) {
				add("socket", 3, family, kind)
			}
			if family != unix.AF_UNIX {
				add("socketpair", 3, family, kind, 0, somewhere)
			}
		}
	}
	for protocol := uint64(1); protocol < 32; protocol++ {
		add("socket", 3, unix.AF_NETLINK, unix.SOCK_RAW, protocol)
	}
	return list
}

// families are the families of sockets that a profile has.
func families(p profile) []uint64 {
	switch {
	case p.level == confine.LevelNamespaces:
		return []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	case p.network == confine.NetworkAll:
		return []uint64{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	default:
		return nil
	}
}

// widths returns a way with every upper half that its arguments may have and an int of the kernel does not: of each
// argument, and of all together. The way itself is the first.
func (w way) widths() []way {
	list := []way{w}
	for _, upper := range []uint64{1, 1 << 31, math.MaxInt32, math.MaxUint32} {
		every := w
		for i := range w.ints {
			one := w
			one.args[i] |= upper << 32
			every.args[i] |= upper << 32
			list = append(list, one)
		}
		if w.ints > 1 {
			list = append(list, every)
		}
	}
	return list
}

// machine interprets the filter of a profile as the kernel of an architecture does.
type machine struct {
	t  *testing.T
	a  *arch.Info
	vm *bpf.VM
}

func newMachine(t *testing.T, p profile, a *arch.Info) *machine {
	prog := must.Value(confine.Program(&confine.Policy{Level: p.level, Network: p.network}, a))(t)
	return &machine{t, a, must.Value(bpf.NewVM(prog))(t)}
}

// call returns the error number with which a call is refused, 0 if it is allowed.
func (m *machine) call(audit arch.AuditArch, number uint32, args [6]uint64) unix.Errno {
	// The words of struct seccomp_data, which the interpreter reads as big-endian numbers.
	words := []uint32{number, uint32(audit), 0, 0}
	for _, a := range args {
		words = append(words, uint32(a), uint32(a>>32))
	}
	data := new(bytes.Buffer)
	require.NoError(m.t, binary.Write(data, binary.BigEndian, words))
	result := uint32(must.Value(m.vm.Run(data.Bytes()))(m.t))
	if result == unix.SECCOMP_RET_ALLOW {
		return 0
	}
	require.EqualValues(m.t, unix.SECCOMP_RET_ERRNO, result&unix.SECCOMP_RET_ACTION_FULL)
	require.NotZero(m.t, result&unix.SECCOMP_RET_DATA)
	return unix.Errno(result & unix.SECCOMP_RET_DATA)
}

var architectures = []*arch.Info{arch.X86_64, arch.AARCH64}

// The filter of each architecture, interpreted: calls of other ABIs, unknown calls, and every width of what it refuses.
// What programs need is allowed.
func TestT10_TheFilterOfEachArchitecture(t *testing.T) {
	refused := 0
	for _, a := range architectures {
		for _, p := range profiles {
			m := newMachine(t, p, a)
			for _, audit := range []arch.AuditArch{
				arch.ARM.ID, arch.AARCH64.ID, arch.I386.ID, arch.X86_64.ID, arch.MIPS.ID, 0,
			} {
				for number := range uint32(1200) {
					_, known := a.SyscallNumbers[int(number)]
					for _, n := range []uint32{number, number | confine.X32Bit, number | 1<<31, -number - 1} {
						if audit == a.ID && known && n == number {
							continue
						}
						require.Equal(t, unix.ENOSYS, m.call(audit, n, [6]uint64{}), "%s %x %x", a.Name, audit, n)
						refused++
					}
				}
			}
			for _, w := range ways(p) {
				number, ok := a.SyscallNames[w.call]
				if !ok {
					continue // its number is unknown; see above
				}
				for _, v := range w.widths() {
					require.NotZero(t, m.call(a.ID, uint32(number), v.args), "%s %v %s %x", a.Name, p, v.call, v.args)
					refused++
				}
			}
			for call, args := range ordinaryCalls(p) {
				if number, ok := a.SyscallNames[call]; ok {
					for _, one := range args {
						require.Zero(t, m.call(a.ID, uint32(number), one), "%s %v %s %x", a.Name, p, call, one)
					}
				}
			}
		}
	}
	t.Logf("%d calls of %d architectures in %d profiles: all refused", refused, len(architectures), len(profiles))
}

// ordinaryCalls are calls that programs make.
func ordinaryCalls(p profile) map[string][][6]uint64 {
	const minusOne = math.MaxUint64
	calls := map[string][][6]uint64{
		"read": {{}, {minusOne, minusOne}}, "execve": {{somewhere}}, "exit_group": {{}}, "futex": {{somewhere}},
		"clone": {{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, {0x3d0f00}, {0x01200011}},
		// musl's ioctl extends the sign of a request.
		"ioctl":             {{0, unix.TCGETS}, {1, 0xffffffff80045430}, {1, 0x80045430}, {minusOne, unix.TCGETS}},
		"setrlimit":         {{unix.RLIMIT_NOFILE, somewhere}, {unix.RLIMIT_CORE, somewhere}},
		"prlimit64":         {{0, unix.RLIMIT_NOFILE, somewhere}, {0, unix.RLIMIT_RTTIME, 0, somewhere}},
		"sched_setaffinity": {{0, 8, somewhere}}, "sched_getaffinity": {{1, 8, somewhere}},
		"setpriority": {{0, 0, 19}, {unix.PRIO_PGRP, 0, minusOne}}, "ioprio_set": {{1, 0, 3 << 13}},
		"prctl": {{unix.PR_SET_NAME, somewhere}, {unix.PR_SET_DUMPABLE, 0}}, "kill": {{minusOne, 9}, {1<<32 - 1, 9}},
		"ptrace": {{}}, "seccomp": {{1}}, "landlock_create_ruleset": {{}}, "socketpair": {{unix.AF_UNIX, unix.SOCK_STREAM}},
		"openat": {{1<<64 - 100, somewhere}}, "mmap": {{0, 4096}}, "rseq": {{somewhere}}, "fchmodat2": {{}},
	}
	for _, family := range families(p) {
		calls["socket"] = append(calls["socket"], [6]uint64{family, unix.SOCK_STREAM | unix.SOCK_CLOEXEC})
	}
	if p.level == confine.LevelNamespaces {
		calls["shmget"], calls["mq_open"] = [][6]uint64{{1}}, [][6]uint64{{somewhere}}
		calls["socketpair"] = append(calls["socketpair"], [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM})
	}
	return calls
}

// Two sources agree about the numbers of the calls that the filter examines: the library's table and golang.org/x/sys.
func TestT10_TheNumbersOfSystemCalls(t *testing.T) {
	out := must.Value(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output())(t)
	for goarch, a := range map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64} {
		source := must.Value(os.ReadFile(
			filepath.Join(strings.TrimSpace(string(out)), "unix", "zsysnum_linux_"+goarch+".go")))(t)
		theirs := make(map[string]int)
		for _, m := range regexp.MustCompile(`(?m)^\tSYS_(\w+)\s+= (\d+)$`).FindAllStringSubmatch(string(source), -1) {
			theirs[strings.ToLower(m[1])] = must.Value(strconv.Atoi(m[2]))(t)
		}
		require.Greater(t, len(theirs), 300)
		checked := make(map[string]bool)
		for _, w := range ways(profile{confine.LevelLandlock, confine.NetworkNone}) {
			ours, known := a.SyscallNames[w.call]
			number, exists := theirs[w.call]
			require.Equal(t, exists, known, "%s %s", goarch, w.call)
			require.Equal(t, number, ours, "%s %s", goarch, w.call)
			checked[w.call] = true
		}
		t.Logf("%s: %d calls", goarch, len(checked))
	}
}

// callerVariable has the path of the program caller, where this process cannot build it.
const callerVariable = "CONFINE_TEST_CALLER"

// build builds a program of testdata for an architecture and returns its path.
func build(t *testing.T, name, goarch string) string {
	path := filepath.Join(must.Value(filepath.EvalSymlinks(t.TempDir()))(t), name)
	cmd := exec.Command("go", "build", "-o", path, "./testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOARCH="+goarch)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// TestT10_NoSystemCallPassesTheFilter makes every call that must be refused, in each profile, with every ABI of the
// machine and every width of its arguments. The kernel must answer as the interpreted filter does.
func TestT10_NoSystemCallPassesTheFilter(t *testing.T) {
	caller := os.Getenv(callerVariable)
	if caller == "" {
		caller = build(t, "caller", runtime.GOARCH)
	}
	native := must.Value(arch.GetInfo(""))(t)
	int80 := native.ID == arch.X86_64.ID && hasInt80(t, caller)
	t.Logf("the kernel has the 32-bit ABI: %v", int80)
	made := 0
	for _, p := range profiles {
		t.Run(string(p.level)+"-"+string(p.network), func(t *testing.T) {
			m := newMachine(t, p, native)
			var calls []string
			var want []unix.Errno
			add := func(abi string, audit arch.AuditArch, number int, args [6]uint64) {
				errno := m.call(audit, uint32(number), args)
				require.NotZero(t, errno)
				line := fmt.Sprint(abi, " ", number)
				for _, a := range args {
					line += " " + strconv.FormatUint(a, 10)
				}
				calls, want = append(calls, line), append(want, errno)
			}
			for _, w := range ways(p) {
				for _, v := range w.widths() {
					if number, ok := native.SyscallNames[w.call]; ok {
						add("native", native.ID, number, v.args)
					}
					if native.ID != arch.X86_64.ID {
						continue
					}
					if number, ok := arch.X86_64.SyscallNames[w.call]; ok {
						add("native", native.ID, number|confine.X32Bit, v.args)
					}
					if number, ok := arch.X32.SyscallNames[w.call]; ok {
						add("native", native.ID, number|confine.X32Bit, v.args)
					}
					if number, ok := arch.I386.SyscallNames[w.call]; ok && int80 {
						add("int80", arch.I386.ID, number, v.args)
					}
				}
			}
			if int80 { // whatever it is
				for number := range arch.I386.SyscallNumbers {
					add("int80", arch.I386.ID, number, [6]uint64{})
				}
			}
			if native.ID == arch.X86_64.ID {
				for number := range arch.X32.SyscallNumbers {
					add("native", native.ID, number|confine.X32Bit, [6]uint64{})
				}
			}
			s := open(t, func(policy *confine.Policy) {
				policy.Level, policy.Network, policy.Readable = p.level, p.network, []string{caller}
			})
			file := filepath.Join(s.workspace, "calls")
			require.NoError(t, os.WriteFile(file, []byte(strings.Join(calls, "\n")+"\n"), 0o600))
			out, status := s.run("exec " + caller + " " + file)
			require.Zero(t, status, out)
			answers := strings.Fields(out)
			require.Len(t, answers, len(calls))
			for i, answer := range answers {
				require.Equal(t, strconv.Itoa(int(want[i])), answer, calls[i])
			}
			t.Logf("%d calls, all refused, as uid %d", len(calls), os.Getuid())
			made += len(calls)
		})
	}
	t.Logf("%d calls in all profiles", made)
}

// hasInt80 reports whether the kernel executes calls of the 32-bit ABI of a program that is not confined.
func hasInt80(t *testing.T, caller string) bool {
	file := filepath.Join(t.TempDir(), "getpid")
	require.NoError(t, os.WriteFile(file, fmt.Appendln(nil, "int80", arch.I386.SyscallNames["getpid"], 0, 0, 0, 0, 0, 0),
		0o600))
	out, err := exec.Command(caller, file).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return false
	}
	require.NoError(t, err)
	require.Equal(t, "0\n", string(out))
	return true
}

// A program of a 32-bit architecture does not run, where the kernel could run it.
func TestT10_A32BitProgramDoesNotRun(t *testing.T) {
	goarch, ok := map[string]string{"amd64": "386", "arm64": "arm"}[runtime.GOARCH]
	require.True(t, ok)
	program := build(t, "program32", goarch)
	outside, err := exec.Command(program).CombinedOutput()
	if !errors.Is(err, syscall.ENOEXEC) {
		require.NoError(t, err)
		require.Equal(t, "reached\n", string(outside))
	}
	for _, p := range profiles {
		s := open(t, func(policy *confine.Policy) {
			policy.Level, policy.Network, policy.Readable = p.level, p.network, []string{program}
		})
		out, status := s.run(program)
		require.NotContains(t, out, "reached")
		require.NotZero(t, status)
	}
}
