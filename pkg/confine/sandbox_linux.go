package confine

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"quartet/pkg/usernet"
)

// Launcher starts cmd, which is the process of a helper, as cmd.Start does; see Open.
type Launcher func(cmd *exec.Cmd) error

// Sandbox confines the processes that Start starts.
type Sandbox struct {
	level   Level
	dir     string
	cmd     *exec.Cmd
	channel *channel
	network *usernet.Network // nil unless NetworkOutside

	mu        sync.Mutex
	next      int64
	processes map[int64]*Process
	reason    error         // what the helper said before it ended; nil if it said nothing
	err       error         // why the helper ended; valid once ended is closed
	ended     chan struct{} // closed when the helper has ended
}

// Process is a process of a Sandbox.
type Process struct {
	// Pid is its process number, as this program sees it; it is also its process group.
	Pid int

	s       *Sandbox
	id      int64
	started chan error    // receives the result of the start, once
	exited  chan struct{} // closed when the process has ended
	reaped  chan struct{} // closed when the helper has reaped it
	once    sync.Once
	status  syscall.WaitStatus // valid once reaped is closed
}

// Open starts a sandbox. helper is the command line of a process that calls Main, and launch
// starts it; nil means cmd.Start. Every process of the sandbox is killed when the thread that
// launch used ends. The error wraps ErrUnavailable if this system cannot enforce the policy.
func Open(policy Policy, helper []string, launch Launcher) (*Sandbox, error) {
	if len(helper) == 0 {
		return nil, errors.New("confine: no helper")
	}
	if launch == nil {
		launch = (*exec.Cmd).Start
	}
	for _, dir := range []string{policy.Dir, Home(policy.Dir), Temp(policy.Dir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("confine: %w", err)
		}
	}
	if policy.Level != "" {
		return open(policy, helper, launch)
	}
	policy.Level = LevelNamespaces
	s, err := open(policy, helper, launch)
	if err == nil || policy.Network == NetworkOutside {
		return s, err
	}
	policy.Level = LevelLandlock
	s, fallback := open(policy, helper, launch)
	if fallback != nil {
		return nil, errors.Join(err, fallback)
	}
	return s, nil
}

func open(policy Policy, helper []string, launch Launcher) (*Sandbox, error) {
	if err := policy.check(); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "sandbox"), os.NewFile(uintptr(pair[1]), "helper")
	s := &Sandbox{level: policy.Level, dir: policy.Dir, processes: make(map[int64]*Process), ended: make(chan struct{})}
	if s.channel, err = newChannel(ours); err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	s.cmd = exec.Command(helper[0], helper[1:]...) //nolint:noctx // it ends with its socket
	s.cmd.ExtraFiles = []*os.File{theirs}
	s.cmd.Env = []string{}
	s.cmd.Dir = "/"
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = policy.attributes()
	err = launch(s.cmd)
	_ = theirs.Close() // the helper has inherited it
	if err != nil {
		return nil, errors.Join(unavailable("namespaces", err), s.channel.conn.Close())
	}
	if err := s.prepare(policy); err != nil {
		return nil, errors.Join(unavailable(string(policy.Level), err), s.Close())
	}
	go s.listen()
	return s, nil
}

// unavailable returns an error that wraps ErrUnavailable and names the mechanism that failed.
func unavailable(mechanism string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, mechanism, err)
}

// check returns an error for a policy that its level cannot enforce.
func (p *Policy) check() error {
	for _, dir := range p.Writable {
		if dir == "/" {
			return errors.New("confine: the root directory cannot be writable; name a directory below it")
		}
		if slices.Contains(p.Hidden, dir) {
			return fmt.Errorf("confine: commands cannot run in %s, which is hidden from them; name a directory below "+
				"or beside it", dir)
		}
	}
	if p.Level != LevelLandlock {
		return nil
	}
	if p.Network == NetworkOutside {
		return unavailable("landlock", errors.New("the network \"outside\" needs user namespaces; choose none or all"))
	}
	dirs := append(visible(*p), p.Writable...)
	for _, hidden := range p.Hidden {
		st, err := os.Lstat(hidden)
		if err != nil || st.Mode()&fs.ModeSymlink != 0 {
			continue // the sandbox ends when it appears; what a link leads to is another path
		}
		for _, dir := range dirs {
			if beneath(hidden, dir) {
				return unavailable("landlock", fmt.Errorf("%s is inside of %s and can be hidden by namespaces only",
					hidden, dir))
			}
		}
	}
	return nil
}

// attributes returns how a helper is started.
func (p *Policy) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if p.Level != LevelNamespaces {
		return attr
	}
	attr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC
	if p.Network != NetworkAll {
		attr.Cloneflags |= syscall.CLONE_NEWNET
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid == 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	} // For other users the helper maps its ids itself, see mapIDs. This process cannot: it is protected (see
	// Protect), so that the files in /proc of its child belong to root until the child executes the helper.
	// A user other than root loses capabilities at exec, unless they are ambient.
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP, unix.CAP_DAC_OVERRIDE}
	return attr
}

// prepare sends the setup to the helper and waits until the sandbox is ready.
func (s *Sandbox) prepare(policy Policy) error {
	m := setup{Policy: policy, Mounts: visible(policy)}
	if policy.Level == LevelNamespaces && os.Geteuid() != 0 {
		m.IDs = &ids{os.Geteuid(), os.Getegid()}
	}
	if policy.Network != NetworkAll && policy.Level == LevelNamespaces {
		m.DNS = "nameserver " + usernet.Gateway + "\n"
		m.Hosts = "127.0.0.1 localhost\n::1 localhost\n"
	}
	if err := s.channel.send(request{Setup: &m}); err != nil {
		return err
	}
	var ready response
	files, err := s.channel.receive(&ready)
	if err != nil {
		return fmt.Errorf("the helper ended: %w", err)
	}
	if ready.Error != "" {
		closeAll(files)
		return errors.New(ready.Error)
	}
	if policy.Network != NetworkOutside {
		closeAll(files)
		return nil
	}
	if len(files) != 1 {
		closeAll(files)
		return errors.New("the helper made no network interface")
	}
	s.network, err = usernet.Open(files[0])
	return err
}

// Level returns what confines the sandbox.
func (s *Sandbox) Level() Level { return s.level }

// Dir returns the Dir of its policy.
func (s *Sandbox) Dir() string { return s.dir }

// Start starts a process. If the error is nil, the caller must call Wait of the process.
func (s *Sandbox) Start(spec Spec) (*Process, error) {
	p := &Process{s: s, started: make(chan error, 1), exited: make(chan struct{}), reaped: make(chan struct{})}
	s.mu.Lock()
	s.next++
	p.id = s.next
	s.processes[p.id] = p
	s.mu.Unlock()
	files := make([]int, 0, len(spec.Files))
	for _, f := range spec.Files {
		files = append(files, int(f.Fd()))
	}
	err := s.channel.send(request{Start: &startMsg{
		ID: p.id, Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir,
		Terminal: spec.Terminal, Mark: spec.Mark,
	}}, files...)
	if err == nil {
		select {
		case err = <-p.started:
		case <-s.ended:
			err = s.Err()
		}
	}
	if err != nil {
		s.forget(p.id)
		return nil, err
	}
	return p, nil
}

// Err returns why the sandbox has ended, and nil before.
func (s *Sandbox) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Sandbox) forget(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.processes, id)
}

// listen receives what the helper reports, until it ends.
func (s *Sandbox) listen() {
	for {
		var r response
		files, err := s.channel.receive(&r)
		s.mu.Lock()
		if err != nil {
			s.err = fmt.Errorf("the sandbox ended: %w", cmp.Or(s.reason, err))
			s.mu.Unlock()
			close(s.ended)
			return
		}
		if r.Event == eventEnding {
			s.reason = errors.New(r.Error)
		}
		p := s.processes[r.ID]
		s.mu.Unlock()
		if p == nil {
			closeAll(files)
			continue
		}
		switch r.Event {
		case eventStarted:
			p.started <- p.identify(r.Error, files)
		case eventExited:
			close(p.exited)
		case eventReaped:
			p.status = syscall.WaitStatus(r.Status)
			close(p.reaped)
		case eventReady, eventEnding:
		}
		closeAll(files)
	}
}

// identify sets p.Pid from the helper's report of the start. message is the error of a start that failed, and
// otherwise empty; then files must have exactly the process descriptor. It does not close files.
func (p *Process) identify(message string, files []int) (err error) {
	if message != "" {
		return errors.New(message)
	}
	if len(files) != 1 {
		return errors.New("confine: a process without a descriptor")
	}
	p.Pid, err = pidOf(files[0])
	return err
}

// pidOf returns the process number of a process descriptor.
func pidOf(fd int) (int, error) {
	f, err := os.Open("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "Pid:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, errors.New("confine: a process descriptor without a process number")
}

// AwaitExit waits until the process has ended and leaves it unreaped, so that its number and
// its process group are not used again.
func (p *Process) AwaitExit() {
	select {
	case <-p.exited:
	case <-p.s.ended:
	}
}

// Wait waits until the process has ended, reaps it, and returns its wait status. If its sandbox
// ended first, that is the status of a process killed by SIGKILL. It is idempotent.
func (p *Process) Wait() syscall.WaitStatus {
	p.AwaitExit()
	p.once.Do(func() {
		_ = p.s.channel.send(request{Reap: p.id}) // if this fails, the sandbox has ended
	})
	defer p.s.forget(p.id)
	select {
	case <-p.reaped:
		return p.status
	case <-p.s.ended:
		return syscall.WaitStatus(syscall.SIGKILL)
	}
}

// Ended is closed when the sandbox has ended, by Close or because its helper died.
func (s *Sandbox) Ended() <-chan struct{} { return s.ended }

// Close kills every process of the sandbox.
func (s *Sandbox) Close() error {
	err := s.channel.conn.Close()
	_ = s.cmd.Process.Kill() // it may have ended by itself
	_ = s.cmd.Wait()         // its status says that it was killed
	if s.network != nil {
		s.network.Close()
	}
	return err
}
