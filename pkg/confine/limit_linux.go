package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// limitThread permanently removes all privileges from the calling thread and from the processes that
// it starts.
func limitThread(s *setup) error {
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := restrictFiles(s); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := loadFilter(&s.Policy); err != nil {
		return fmt.Errorf("system call filter: %w", err)
	}
	return nil
}

// dropCapabilities removes all capabilities from the thread and its children. If the thread may
// not reduce its bounding set, only no_new_privs, which the caller must set, keeps programs from
// regaining them.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EPERM) { // not privileged: there is nothing to lose
			break
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: this kernel has no such capability
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// Rights of Landlock by kind of path.
const (
	readRights = landlock.AccessFSExecute | landlock.AccessFSReadFile | landlock.AccessFSReadDir
	fileRights = landlock.AccessFSExecute | landlock.AccessFSReadFile | landlock.AccessFSWriteFile |
		landlock.AccessFSTruncate | landlock.AccessFSIoctlDev
	writeRights = readRights | fileRights | landlock.AccessFSRemoveDir | landlock.AccessFSRemoveFile |
		landlock.AccessFSMakeDir |
		landlock.AccessFSMakeReg | landlock.AccessFSMakeSock | landlock.AccessFSMakeFifo | landlock.AccessFSMakeSym |
		landlock.AccessFSRefer
	allRights = writeRights | landlock.AccessFSMakeChar | landlock.AccessFSMakeBlock
)

// devices are the device files that commands may use.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// restrictFiles restricts the calling thread to the files of the policy, and its signals and
// abstract sockets to its own processes where the kernel can.
func restrictFiles(s *setup) error {
	abi, err := landlock.LandlockGetABIVersion()
	if err != nil {
		abi = 0
	}
	if err := missing(&s.Policy, abi); err != nil || abi < 1 {
		return err // without Landlock, the root of the sandbox contains only permitted files
	}
	attr := landlock.RulesetAttr{HandledAccessFS: allRights &^ missingRights(abi)}
	if abi >= 6 {
		attr.Scoped = landlock.ScopeAbstractUnixSocket | landlock.ScopeSignal
	}
	rules, err := landlock.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(rules) }() // nothing was written to it
	allow := func(path string, rights uint64) error {
		return allowPath(rules, path, rights&attr.HandledAccessFS)
	}
	for _, path := range s.Mounts {
		err = errors.Join(err, allow(path, readRights))
	}
	for _, path := range []string{Home(s.Policy.Dir), Temp(s.Policy.Dir)} {
		err = errors.Join(err, allow(path, writeRights))
	}
	for _, root := range s.Policy.Writable {
		err = errors.Join(err, allowRoot(&s.Policy, root, allow))
	}
	for _, path := range devices {
		err = errors.Join(err, allow(path, fileRights))
	}
	err = errors.Join(err, allow("/proc", readRights))
	if s.Policy.Level == LevelNamespaces {
		err = errors.Join(err, allow("/", landlock.AccessFSReadDir)) // the root contains only permitted files
		for _, path := range []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/pts", "/dev/ptmx"} {
			err = errors.Join(err, allow(path, writeRights))
		}
		for _, path := range []string{"/dev", "/run"} {
			err = errors.Join(err, allow(path, readRights))
		}
	}
	if err != nil {
		return err
	}
	return landlock.LandlockRestrictSelf(rules, 0)
}

// allowRoot adds the rights for a writable directory. What mounts make read-only is not told apart. Without them a
// directory that is fixed, or around one, can be read, and each of its entries has its own rights: Landlock cannot take
// away from an entry what its directory has.
func allowRoot(p *Policy, path string, allow func(string, uint64) error) error {
	inside := func(fixed string) bool { return beneath(fixed, path) }
	if p.Level == LevelNamespaces || !slices.ContainsFunc(p.Fixed, inside) {
		return allow(path, writeRights)
	}
	err := allow(path, readRights)
	entries, _ := os.ReadDir(path) // what cannot be read is not writable
	for _, e := range entries {
		entry := filepath.Join(path, e.Name())
		if (e.IsDir() || e.Type().IsRegular()) && !slices.Contains(p.ReadOnly, entry) {
			err = errors.Join(err, allowRoot(p, entry, allow))
		}
	}
	return err
}

// missing returns an error if a kernel whose Landlock has the version abi, 0 if it has none, cannot enforce a policy.
func missing(p *Policy, abi int) error {
	var what string
	switch {
	case p.Level == LevelLandlock && abi < 1:
		return errors.New("this kernel has no Landlock")
	case abi >= 6:
		return nil
	case p.Level == LevelLandlock:
		what = "signals; without namespaces"
	case p.Network == NetworkAll:
		what = "abstract Unix sockets, which the network \"all\" shares with the host; for it"
	default:
		return nil
	}
	return fmt.Errorf("version %d of this kernel's Landlock does not confine %s, version 6 (Linux 6.12) is needed", abi,
		what)
}

// missingRights returns the rights that a version of Landlock does not know.
func missingRights(abi int) (rights uint64) {
	if abi < 2 {
		rights |= landlock.AccessFSRefer
	}
	if abi < 3 {
		rights |= landlock.AccessFSTruncate
	}
	if abi < 5 {
		rights |= landlock.AccessFSIoctlDev
	}
	return rights
}

// allowPath adds rights for a path and what is below it. A path that does not exist needs none.
func allowPath(rules int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	err = landlock.LandlockAddPathBeneathRule(rules, &landlock.PathBeneathAttr{AllowedAccess: rights, ParentFd: fd}, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// visible returns the paths that are visible read-only, with symbolic links resolved: the programs
// and libraries of the system, then what the policy adds. It leaves out paths that do not exist and
// those that are, or are below, one that it has already.
func visible(p Policy) []string {
	var paths []string
	for _, path := range append([]string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt",
		"/nix", "/gnu",
	}, p.Readable...) {
		found, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		if _, err := os.Stat(found); err == nil &&
			!slices.ContainsFunc(paths, func(dir string) bool { return beneath(found, dir) }) {
			paths = append(paths, found)
		}
	}
	return paths
}
