package confine_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// attackArgument makes the test binary an attacker, whose next argument names the attack.
const attackArgument = "attack"

// attacks are what a command tries. Each returns what it reached, beginning with "reached", or
// why it did not.
var attacks = map[string]func(args []string) string{
	"read":           func(a []string) string { return said(os.ReadFile(a[0])) },
	"list":           list,
	"write":          func(a []string) string { return done(os.WriteFile(a[0], []byte("x"), 0o600)) },
	"append":         appendTo,
	"openforwriting": openForWriting,
	"remove":         func(a []string) string { return done(os.Remove(a[0])) },
	"rename":         func(a []string) string { return done(os.Rename(a[0], a[1])) },
	"link": func(a []string) string {
		return then(os.Link(a[0], a[1]), func() string { return said(os.ReadFile(a[1])) })
	},
	"symlink": func(a []string) string {
		return then(os.Symlink(a[0], a[1]), func() string { return said(os.ReadFile(a[1])) })
	},
	"chmod":    func(a []string) string { return done(os.Chmod(a[0], 0o777)) },
	"truncate": func(a []string) string { return done(os.Truncate(a[0], 0)) },
	"mkdir":    func(a []string) string { return done(os.Mkdir(a[0], 0o700)) },
	"execute":  func(a []string) string { return said(exec.Command(a[0], a[1:]...).CombinedOutput()) },
	"mknod":    func(a []string) string { return done(unix.Mknod(a[0], unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))) },
	"kill":     func(a []string) string { return done(unix.Kill(number(a[0]), unix.SIGKILL)) },
	"killall":  killable,
	"signal1":  func([]string) string { return done(unix.Kill(1, unix.SIGKILL)) },
	"ptrace":   func(a []string) string { runtime.LockOSThread(); return done(unix.PtraceSeize(number(a[0]))) },
	"prlimit": func(a []string) string {
		return done(unix.Prlimit(number(a[0]), unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil))
	},
	"reniceuser":  func([]string) string { return done(unix.Setpriority(unix.PRIO_USER, 0, 1)) },
	"affinity":    func(a []string) string { return done(unix.SchedSetaffinity(number(a[0]), &unix.CPUSet{1})) },
	"scheduler":   func(a []string) string { return done(unix.SchedSetAttr(number(a[0]), idle(), 0)) },
	"mark":        func([]string) string { return done(unix.Setrlimit(unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: 1, Max: 1})) },
	"attachshm":   func(a []string) string { return said(unix.SysvShmAttach(number(a[0]), 0, 0)) },
	"datagram":    sendDatagram,
	"renice":      func(a []string) string { return done(unix.Setpriority(unix.PRIO_PROCESS, number(a[0]), 19)) },
	"readmemory":  readMemory,
	"pidfd":       stealFile,
	"chroot":      func(a []string) string { return done(unix.Chroot(a[0])) },
	"mount":       func(a []string) string { return done(unix.Mount("tmpfs", a[0], "tmpfs", 0, "")) },
	"remount":     func([]string) string { return done(unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "")) },
	"umount":      func(a []string) string { return done(unix.Unmount(a[0], unix.MNT_DETACH)) },
	"opentree":    func([]string) string { return opened(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)) },
	"unshare":     func([]string) string { runtime.LockOSThread(); return done(unix.Unshare(unix.CLONE_NEWNS)) },
	"userns":      newUserNamespace,
	"setns":       enterNamespace,
	"setuid":      func([]string) string { return done(syscall.Setuid(12345)) },
	"sethostname": func([]string) string { return done(unix.Sethostname([]byte("attacked"))) },
	"handle":      openByHandle,
	"keyring":     func([]string) string { return opened(unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)) },
	"bpf":         func([]string) string { return system(unix.SYS_BPF, 0, 0, 0) },
	"iouring":     ioUring,
	"perf":        perf,
	"userfault":   func([]string) string { return system(unix.SYS_USERFAULTFD, 1, 0, 0) },
	"module":      func([]string) string { return system(unix.SYS_FINIT_MODULE, 0, 0, 0) },
	"reboot":      func([]string) string { return system(unix.SYS_REBOOT, 0, 0, 0) },
	"clock":       func([]string) string { return done(unix.Settimeofday(&unix.Timeval{Sec: 1})) },
	"dial":        dial,
	"udp":         exchangePacket,
	"listen":      listenHost,
	"vsock":       func([]string) string { return opened(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) },
	"packet":      func([]string) string { return opened(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)) },
	"raw":         func([]string) string { return opened(unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)) },
	"shm":         sharedMemory,
	"terminal":    pushInput,
	"descriptors": openDescriptors,
}

func said(b []byte, err error) string {
	if err != nil {
		return "refused: " + err.Error()
	}
	return "reached: " + strings.TrimSpace(string(b))
}

func done(err error) string { return said(nil, err) }

func then(err error, f func() string) string {
	if err != nil {
		return done(err)
	}
	return f()
}

func opened(fd int, err error) string { return said([]byte(strconv.Itoa(fd)), err) }

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func system(trap, a, b, c uintptr) string {
	r, _, errno := unix.Syscall(trap, a, b, c)
	if errno != 0 {
		// EPERM and ENOSYS are refusals of the filter; another error is the kernel's about the
		// arguments, so that the call was reached.
		if errno == unix.EPERM || errno == unix.ENOSYS {
			return done(errno)
		}
		return "reached: " + errno.Error()
	}
	return "reached: " + strconv.Itoa(int(r))
}

func list(a []string) string {
	entries, err := os.ReadDir(a[0])
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return said([]byte(strings.Join(names, " ")), err)
}

// openForWriting does not write: what it may reach is the machine's.
func openForWriting(a []string) string {
	f, err := os.OpenFile(a[0], os.O_WRONLY, 0)
	if err == nil {
		err = f.Close()
	}
	return done(err)
}

func appendTo(a []string) string {
	f, err := os.OpenFile(a[0], os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("x")
	}
	return done(err)
}

// killable returns a process that a command may signal, beside itself.
func killable([]string) string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return done(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && unix.Kill(pid, 0) == nil {
			return said(os.ReadFile("/proc/" + e.Name() + "/status"))
		}
	}
	return "refused: none"
}

func readMemory(a []string) string {
	buf := make([]byte, 8)
	local := []unix.Iovec{{Base: &buf[0], Len: 8}}
	_, err := unix.ProcessVMReadv(number(a[0]), local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	if errors.Is(err, unix.EFAULT) { // allowed to read, but not there
		err = nil
	}
	return done(err)
}

func stealFile(a []string) string {
	fd, err := unix.PidfdOpen(number(a[0]), 0)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
	}
	return done(err)
}

func newUserNamespace([]string) string {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return done(cmd.Run())
}

func enterNamespace(a []string) string {
	runtime.LockOSThread()
	fd, err := unix.Open("/proc/"+a[0]+"/ns/net", unix.O_RDONLY, 0)
	if err == nil {
		err = unix.Setns(fd, unix.CLONE_NEWNET)
	}
	return done(err)
}

func openByHandle([]string) string {
	handle := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
	return opened(unix.OpenByHandleAt(unix.AT_FDCWD, handle, unix.O_RDONLY))
}

func ioUring([]string) string {
	var params [120]byte
	return system(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
}

func perf([]string) string {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	return opened(unix.PerfEventOpen(&attr, 0, -1, -1, 0))
}

func dial(a []string) string {
	conn, err := net.DialTimeout(a[0], a[1], 2*time.Second)
	if err != nil {
		return done(err)
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if line != "" {
		err = nil
	}
	return said([]byte(line), err)
}

func exchangePacket(a []string) string {
	conn, err := net.Dial("udp", a[0])
	if err != nil {
		return done(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err = conn.Write([]byte("x")); err != nil {
		return done(err)
	}
	b := make([]byte, 100)
	n, err := conn.Read(b)
	return said(b[:n], err)
}

// listenHost takes the port of a server of the host, to receive what is meant for it.
func listenHost(a []string) string {
	l, err := net.Listen("tcp", a[0])
	if err != nil {
		return done(err)
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Second))
	conn, err := l.Accept()
	if err == nil {
		_ = conn.Close()
	}
	return done(err)
}

// segmentKey is the key of a segment of shared memory of the host, which is this process's.
var segmentKey = 0x51a20000 + os.Getpid()%0x10000

func sharedMemory(a []string) string {
	id, err := unix.SysvShmGet(number(a[0]), len("SECRET"), 0)
	if err != nil {
		return done(err)
	}
	b, err := unix.SysvShmAttach(id, 0, 0)
	return said(b, err)
}

// idle is a schedule that anybody may choose for processes of the same user.
func idle() *unix.SchedAttr {
	return &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
}

// sendDatagram sends to a socket with a path from one of a pair, which was made without a path.
func sendDatagram(a []string) string {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: a[0]})
	}
	return done(err)
}

func pushInput([]string) string {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return done(err)
	}
	c := byte('x')
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
	if errno != 0 {
		return done(errno)
	}
	return "reached"
}

// openDescriptors lists the files that a command has beside its own three.
func openDescriptors([]string) string {
	for fd := 3; fd < 1024; fd++ {
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc") {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				return "reached: " + strconv.Itoa(fd) + " " + target
			}
		}
	}
	return "refused: none"
}

// host is what an attack is aimed at.
type host struct {
	dir, data, secret, private, socket string
	tokens                             string // the directory of token files
	victim                             int    // a process of the same user
	segment                            int    // shared memory
	tcp, udp, public                   string
}

// newHost makes files, a process and servers, each of which answers with the word SECRET.
func newHost(t *testing.T) *host {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	h := &host{
		dir: dir, data: filepath.Join(dir, "data"), secret: filepath.Join(dir, "secret"),
		private: filepath.Join(dir, "data", "key"), socket: filepath.Join(dir, "s"),
	}
	h.tokens = filepath.Join(dir, ".local", "state", "quartet")
	require.NoError(t, errors.Join(os.Mkdir(h.data, 0o700), os.MkdirAll(h.tokens, 0o700)))
	require.NoError(t, os.WriteFile(h.token(), []byte("Authorization: Bearer SECRET\n"), 0o600))
	for _, path := range []string{h.secret, h.private} {
		require.NoError(t, os.WriteFile(path, []byte("SECRET"), 0o666))
	}
	segment := must.Value(unix.SysvShmGet(segmentKey, len("SECRET"), unix.IPC_CREAT|0o600))(t)
	h.segment = segment
	memory := must.Value(unix.SysvShmAttach(segment, 0, 0))(t)
	copy(memory, "SECRET")
	t.Cleanup(func() { _ = unix.SysvShmDetach(memory) })
	victim := exec.Command("sleep", "1000")
	victim.Env = []string{"TOKEN=SECRET"}
	require.NoError(t, victim.Start())
	t.Cleanup(func() { _, _ = victim.Process.Kill(), victim.Wait() })
	h.victim = victim.Process.Pid
	answer(t, "unix", h.socket)
	answer(t, "unix", "@"+h.socket)
	packets := must.Value(net.ListenPacket("unixgram", h.socket+"g"))(t)
	t.Cleanup(func() { _ = packets.Close() })
	h.tcp = answer(t, "tcp", "127.0.0.1:0").String()
	everywhere := answer(t, "tcp", "0.0.0.0:0").(*net.TCPAddr)
	h.public = net.JoinHostPort(ownAddress(t), strconv.Itoa(everywhere.Port))
	h.udp = answerPackets(t, "127.0.0.1:0").String()
	return h
}

// answer runs a server that sends SECRET to every client that connects, until the test ends.
func answer(t *testing.T, network, address string) net.Addr {
	l := must.Value(net.Listen(network, address))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "SECRET\n")
			_ = conn.Close()
		}
	}()
	return l.Addr()
}

// answerPackets is answer for UDP.
func answerPackets(t *testing.T, address string) net.Addr {
	packets := must.Value(net.ListenPacket("udp", address))(t)
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte("SECRET"), from)
		}
	}()
	return packets.LocalAddr()
}

// ownAddress returns an address of this host, not of loopback if it has one.
func ownAddress(t *testing.T) string {
	addrs := must.Value(net.InterfaceAddrs())(t)
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// token is the path of the token file of a server.
func (h *host) token() string { return filepath.Join(h.tokens, "127.0.0.1:7480") }

// profile is a combination of level and network.
type profile struct {
	level   confine.Level
	network confine.Network
}

var profiles = []profile{
	{confine.LevelNamespaces, confine.NetworkNone},
	{confine.LevelNamespaces, confine.NetworkOutside},
	{confine.LevelNamespaces, confine.NetworkAll},
	{confine.LevelLandlock, confine.NetworkNone},
	{confine.LevelLandlock, confine.NetworkAll},
}

// TestAttacks has a command try to reach what it must not, in each profile (SPEC T10.3). With -v it lists
// what happened.
func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	t.Cleanup(func() {
		if id, err := unix.SysvShmGet(segmentKey, 0, 0); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	})
	exe := must.Value(os.Executable())(t)
	for _, p := range profiles {
		t.Run(string(p.level)+"-"+string(p.network), func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			other := open(t, func(policy *confine.Policy) { policy.Level, policy.Network = p.level, p.network })
			otherPid, _ := other.start("echo SECRET > $HOME/secret; exec sleep 1000")
			s := open(t, func(policy *confine.Policy) {
				policy.Level, policy.Network, policy.Readable = p.level, p.network, []string{exe}
				policy.Hidden = []string{h.data, h.tokens}
			})
			answer(t, "unix", s.workspace+"/s")
			namespaces, all := p.level == confine.LevelNamespaces, p.network == confine.NetworkAll
			victim, helper := strconv.Itoa(h.victim), strconv.Itoa(os.Getpid())
			if namespaces {
				helper = "1"
			}
			for _, a := range []struct {
				name    string
				args    []string
				allowed bool // what the profile permits by design
			}{
				{name: "read", args: []string{h.secret}},
				{name: "read", args: []string{h.private}},
				{name: "list", args: []string{h.data}},
				{name: "list", args: []string{h.dir}},
				{name: "read", args: []string{h.token()}},
				{name: "list", args: []string{h.tokens}},
				{name: "rename", args: []string{h.tokens, s.workspace + "/tokens"}},
				{name: "symlink", args: []string{h.token(), s.workspace + "/token"}},
				{name: "write", args: []string{h.token()}},
				{name: "read", args: []string{confine.Home(other.Dir()) + "/secret"}},
				{name: "list", args: []string{confine.Temp(other.Dir())}},
				{name: "write", args: []string{confine.Home(other.Dir()) + "/planted"}},
				{name: "read", args: []string{s.workspace + "/../../secret"}},
				{name: "write", args: []string{h.secret}},
				{name: "append", args: []string{h.secret}},
				{name: "truncate", args: []string{h.secret}},
				{name: "remove", args: []string{h.secret}},
				{name: "rename", args: []string{h.secret, s.workspace + "/stolen"}},
				{name: "link", args: []string{h.secret, s.workspace + "/hard"}},
				{name: "symlink", args: []string{h.secret, s.workspace + "/soft"}},
				// Landlock does not confine modes and times
				{name: "chmod", args: []string{h.secret}, allowed: !namespaces},
				{name: "mkdir", args: []string{h.dir + "/planted"}},
				{name: "write", args: []string{"/usr/planted"}},
				{name: "write", args: []string{"/etc/planted"}},
				{name: "append", args: []string{"/etc/hosts"}},
				{name: "append", args: []string{exe}},
				{name: "mknod", args: []string{s.workspace + "/disk"}},
				{name: "read", args: []string{"/proc/" + victim + "/environ"}},
				{name: "read", args: []string{"/proc/" + helper + "/environ"}},
				{name: "list", args: []string{"/proc/" + helper + "/cwd"}},
				{name: "read", args: []string{"/proc/" + helper + "/root" + h.secret}},
				{name: "read", args: []string{"/proc/" + helper + "/mem"}},
				{name: "read", args: []string{"/proc/" + helper + "/maps"}},
				{name: "openforwriting", args: []string{"/proc/sys/kernel/core_pattern"}},
				{name: "openforwriting", args: []string{"/proc/sysrq-trigger"}},
				{name: "append", args: []string{"/proc/" + victim + "/oom_score_adj"}},
				{name: "kill", args: []string{victim}},
				{name: "kill", args: []string{strconv.Itoa(otherPid.Pid)}},
				{name: "ptrace", args: []string{victim}},
				{name: "ptrace", args: []string{helper}},
				{name: "readmemory", args: []string{victim}},
				{name: "readmemory", args: []string{helper}},
				{name: "pidfd", args: []string{victim}},
				{name: "pidfd", args: []string{helper}},
				{name: "prlimit", args: []string{victim}},
				{name: "renice", args: []string{victim}},
				{name: "renice", args: []string{helper}},
				{name: "prlimit", args: []string{helper}},
				{name: "reniceuser"},
				{name: "affinity", args: []string{victim}},
				{name: "affinity", args: []string{helper}},
				{name: "scheduler", args: []string{victim}},
				{name: "scheduler", args: []string{helper}},
				{name: "mark"},
				{name: "chroot", args: []string{s.workspace}},
				{name: "mount", args: []string{s.workspace}},
				{name: "remount"},
				{name: "umount", args: []string{"/proc"}},
				{name: "opentree"},
				{name: "unshare"},
				{name: "userns"},
				{name: "setns", args: []string{helper}},
				{name: "setuid"},
				{name: "sethostname"},
				{name: "handle"},
				{name: "keyring"},
				{name: "bpf"},
				{name: "iouring"},
				{name: "perf"},
				{name: "userfault"},
				{name: "module"},
				{name: "reboot"},
				{name: "clock"},
				{name: "dial", args: []string{"unix", h.socket}},
				{name: "dial", args: []string{"unix", "@" + h.socket}},
				{name: "dial", args: []string{"unix", s.workspace + "/s"}, allowed: namespaces},
				{name: "dial", args: []string{"tcp", h.tcp}, allowed: all},
				{name: "dial", args: []string{"tcp", h.public}, allowed: all},
				{
					name: "dial", args: []string{"tcp", "0.0.0.0" + h.tcp[strings.LastIndexByte(h.tcp, ':'):]},
					allowed: all,
				},
				{name: "dial", args: []string{"tcp", "10.0.2.2" + h.tcp[strings.LastIndexByte(h.tcp, ':'):]}},
				{name: "dial", args: []string{"tcp", "169.254.169.254:80"}},
				{name: "udp", args: []string{h.udp}, allowed: all},
				{name: "killall"},
				{name: "signal1"},
				{name: "shm", args: []string{strconv.Itoa(segmentKey)}},
				{name: "attachshm", args: []string{strconv.Itoa(h.segment)}},
				{name: "datagram", args: []string{h.socket + "g"}},
				{name: "listen", args: []string{h.tcp}},
				{name: "vsock"},
				{name: "packet"},
				{name: "raw"},
				{name: "terminal"},
				{name: "descriptors"},
			} {
				out, _ := s.attack(exe, a.name, a.args)
				reached := !strings.HasPrefix(out, "refused: ")
				t.Logf("%-12s %-40s %s", a.name, strings.Join(a.args, " "), strings.ReplaceAll(out, "\n", " "))
				require.Equal(t, a.allowed, reached, "%s %v: %s", a.name, a.args, out)
			}
			require.NoError(t, unix.Kill(h.victim, 0))
			require.Equal(t, "SECRET", string(must.Value(os.ReadFile(h.secret))(t)))
			out, _ := s.run("echo alive")
			require.Equal(t, "alive", out, "the sandbox outlives its commands")
		})
	}
}

// attack runs an attack in the sandbox.
func (s *sandbox) attack(exe, name string, args []string) (string, syscall.WaitStatus) {
	return s.run("exec " + exe + " " + attackArgument + " " + name + " " + strings.Join(args, " ") + " 2>&1")
}
