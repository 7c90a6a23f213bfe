package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"quartet/pkg/usernet"
)

// mount is a file or directory of the host in the view of a sandbox.
type mount struct {
	path   string // in the view; except for the temporary directories, the host has it at the same path
	tree   int    // a descriptor of the detached mount
	dir    bool
	hidden bool     // the path is concealed; tree is not set
	list   *listing // the path is a directory with these entries; tree is not set
	nested bool     // list, and a directory around it is a list as well
}

// viewRoot is where the view is assembled before it becomes the root. Any directory will do: the
// files that the mount over it covers were opened before.
const viewRoot = "/tmp"

// enterView makes the view, which is a file system that contains only what the policy permits, and
// makes it the root of this process.
func enterView(s *setup, g *guardian) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts, omitted, err := openMounts(s)
	if err != nil {
		return err
	}
	files := hostFiles(s)
	if err := unix.Mount("tmpfs", viewRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=8m"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	// Before everything else, because a directory of the policy may be inside of /dev/shm.
	if err := mountKernelFiles(); err != nil {
		return err
	}
	links := systemLinks()
	points := make(map[string]bool)
	for _, m := range mounts {
		points[m.path] = points[m.path] || !m.hidden
	}
	for _, m := range mounts {
		if !m.hidden {
			if err := pinParents(m.path, points); err != nil {
				return err
			}
		}
		if err := m.attach(g, omitted); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		if (m.hidden && m.dir) || (m.list != nil && !m.nested) { // all mount points inside of it have been made
			// it may not be visible
			_ = unix.MountSetattr(unix.AT_FDCWD, viewRoot+m.path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
	}
	for link, target := range links {
		if err := os.Symlink(target, viewRoot+link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := mountHostFiles(files); err != nil {
		return err
	}
	if err := os.Chdir(viewRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// The root itself holds mount points only.
	return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// openMounts opens everything that is visible, and returns it so that a directory comes before what is inside of it.
// Paths that are hidden are among the mounts. omitted are the entries of listings that are not mounted.
func openMounts(s *setup) (mounts []mount, omitted map[string]bool, err error) {
	hidden := slices.Clone(s.Policy.Hidden)
	for _, dir := range searched() {
		if slices.ContainsFunc(s.Mounts, func(m string) bool { return beneath(dir, m) }) {
			hidden = append(hidden, notPublic(dir, append([]string{s.Policy.Dir}, s.Policy.Writable...))...)
		}
	}
	omitted = make(map[string]bool)
	var unlisted []string
	for _, dir := range listed(s.Mounts, s.Policy.Writable, hidden) {
		if slices.ContainsFunc(unlisted, func(outer string) bool { return within(dir, outer) }) {
			continue // it is hidden with the directory around it
		}
		list, err := openListing(dir)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", dir, err)
		}
		omitted[dir] = true // it is mounted itself
		if list == nil {
			unlisted = append(unlisted, dir)
			continue
		}
		mounts = append(mounts, mount{path: dir, dir: true, list: list, nested: !slices.Contains(s.Mounts, dir)})
	}
	for _, path := range append(hidden, unlisted...) {
		omitted[path] = true
		if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink == 0 {
			mounts = append(mounts, mount{path: path, dir: st.IsDir(), hidden: true})
		}
	}
	add := func(source, path string, readOnly bool) error {
		m, err := openMount(source, path, readOnly)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		mounts = append(mounts, m)
		return nil
	}
	for _, path := range s.Mounts {
		if !omitted[path] {
			err = errors.Join(err, add(path, path, true))
		}
	}
	for _, path := range s.Policy.Writable {
		err = errors.Join(err, add(path, path, false))
	}
	for _, k := range kept(s, hidden) {
		// the host, or a command of another sandbox, removed it
		if missing := add(k.path, k.path, k.readOnly); !errors.Is(missing, fs.ErrNotExist) &&
			!errors.Is(missing, unix.ELOOP) {
			err = errors.Join(err, missing)
		}
	}
	for _, path := range devices {
		err = errors.Join(err, add(path, path, false))
	}
	dir := s.Policy.Dir
	err = errors.Join(err, add(Home(dir), Home(dir), false), add(Temp(dir), Temp(dir), false),
		add(Temp(dir), "/tmp", false), add(Temp(dir), "/var/tmp", false))
	if err != nil {
		return nil, nil, err
	}
	// A hidden directory may contain directories of the sandbox, which are mounted after it.
	slices.SortStableFunc(mounts, func(a, b mount) int {
		return cmp.Compare(strings.Count(a.path, "/"), strings.Count(b.path, "/"))
	})
	return mounts, omitted, nil
}

// keptMount is a mount of what is in a writable directory and is not as writable as that.
type keptMount struct {
	path     string
	readOnly bool
}

// kept returns what is mounted in the writable directories, apart from what is hidden: the fixed directories, which are
// read-only, and their entries, which are not; what is read-only; and the directories that lead to it or to something
// hidden.
func kept(s *setup, hidden []string) (list []keptMount) {
	p := &s.Policy
	known := make(map[string]bool)
	for _, path := range slices.Concat(hidden, s.Mounts) {
		known[path] = true
	}
	isReadOnly := func(path string) bool {
		return slices.ContainsFunc(p.ReadOnly, func(dir string) bool { return beneath(path, dir) })
	}
	add := func(path string, readOnly bool) {
		covered := slices.ContainsFunc(hidden, func(dir string) bool { return within(path, dir) })
		if !known[path] && !covered {
			known[path] = true
			list = append(list, keptMount{path, readOnly})
		}
	}
	for _, dir := range p.Fixed {
		add(dir, true)
	}
	for _, path := range p.ReadOnly {
		add(path, true)
	}
	for _, dir := range p.Fixed {
		entries, _ := os.ReadDir(dir) // what cannot be read is not writable
		for _, e := range entries[:min(len(entries), maxListed)] {
			if e.IsDir() || e.Type().IsRegular() {
				add(filepath.Join(dir, e.Name()), isReadOnly(filepath.Join(dir, e.Name())))
			}
		}
	}
	for _, path := range parentsOfHidden(s.Policy) {
		add(path, isReadOnly(path))
	}
	for _, path := range slices.Concat(p.Fixed, p.ReadOnly) {
		for _, root := range p.Writable {
			if !within(path, root) {
				continue
			}
			for dir := filepath.Dir(path); len(dir) > len(root); dir = filepath.Dir(dir) {
				add(dir, isReadOnly(dir))
			}
		}
	}
	return list
}

// parentsOfHidden returns the directories inside of a writable one that lead to something hidden. Each
// becomes a mount point, which cannot be renamed: a command could otherwise move what is hidden
// to where the next sandbox does not hide it.
func parentsOfHidden(p Policy) (paths []string) {
	for _, hidden := range p.Hidden {
		for _, root := range p.Writable {
			if !within(hidden, root) ||
				slices.ContainsFunc(p.Hidden, func(outer string) bool {
					return outer != hidden &&
						within(hidden, outer)
				}) {
				continue // it is not in root, or a directory around it is hidden already
			}
			for dir := filepath.Dir(hidden); len(dir) > len(root); dir = filepath.Dir(dir) {
				if st, err := os.Lstat(dir); err == nil && st.IsDir() && !slices.Contains(paths, dir) {
					paths = append(paths, dir)
				}
			}
		}
	}
	return paths
}

// within reports whether a path is inside of a directory. Both are clean.
func within(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// openMount opens a detached copy of a file or directory. No part of the source may be a symbolic link, which a command
// of another sandbox could have put there.
func openMount(source, path string, readOnly bool) (mount, error) {
	m := mount{path: path}
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return m, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return m, err
	}
	m.dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if m.dir {
		flags |= unix.AT_RECURSIVE
	}
	if m.tree, err = unix.OpenTree(fd, "", flags); err != nil {
		return m, err
	}
	return m, restrictTree(m.tree, readOnly)
}

// restrictTree takes set-user-ID programs out of effect in a detached mount, and makes it read-only if that is wanted.
func restrictTree(tree int, readOnly bool) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
}

// pinParents makes each directory between a temporary directory and the mount point path inside of it a mount point
// too, unless points has it, and adds it to points. Commands may write to the temporary directories, but cannot
// rename a mount point. Without this, a command could rename a directory above a root, and the next command would
// not find it.
func pinParents(path string, points map[string]bool) error {
	for _, temp := range []string{"/tmp", "/var/tmp"} {
		if !within(path, temp) {
			continue
		}
		var parents []string
		for dir := filepath.Dir(path); dir != temp; dir = filepath.Dir(dir) {
			parents = append(parents, dir)
		}
		for _, dir := range slices.Backward(parents) {
			if points[dir] {
				continue
			}
			points[dir] = true
			if err := makePoint(viewRoot+dir, true); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			if err := unix.Mount(viewRoot+dir, viewRoot+dir, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
		}
	}
	return nil
}

// attach mounts m at its path in the view, or conceals the path if m is hidden.
func (m *mount) attach(g *guardian, omitted map[string]bool) error {
	target := viewRoot + m.path
	if m.hidden {
		return whileReplaced(func() error { return g.conceal(target, m.dir) })
	}
	if err := makePoint(target, m.dir); err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	if m.list != nil {
		if !m.nested {
			if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err !=
				nil {
				return fmt.Errorf("%s: %w", m.path, err)
			}
		}
		return m.list.attach(m.path, omitted)
	}
	if err := unix.MoveMount(m.tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	return unix.Close(m.tree)
}

// makePoint makes a mount point, unless there is one.
func makePoint(target string, dir bool) error {
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	if dir {
		return os.MkdirAll(target, 0o755) //nolint:gosec // commands pass through it
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // as above
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// systemLinks returns the symbolic links in the root directory of the host that lead to system
// directories, such as /bin: their targets by path.
func systemLinks() map[string]string {
	links := make(map[string]string)
	for _, path := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if target, err := os.Readlink(path); err == nil {
			links[path] = target
		}
	}
	return links
}

// mountKernelFiles mounts /proc, /dev/pts and /dev/shm and makes the links in /dev.
func mountKernelFiles() error {
	const common = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		path, kind string
		flags      uintptr
		options    string
	}{
		{"/proc", "proc", common | unix.MS_NODEV, ""},
		{"/dev/pts", "devpts", common, "newinstance,ptmxmode=0666,mode=0620"},
		{"/dev/shm", "tmpfs", common | unix.MS_NODEV, "mode=1777,size=64m"},
	} {
		if err := os.MkdirAll(viewRoot+m.path, 0o755); err != nil { //nolint:gosec // commands read it
			return err
		}
		if err := unix.Mount(m.kind, viewRoot+m.path, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	if err := protectKernel(); err != nil {
		return err
	}
	links := map[string]string{
		"/dev/ptmx": "pts/ptmx", "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	}
	for link, target := range links {
		if err := os.Symlink(target, viewRoot+link); err != nil {
			return err
		}
	}
	return nil
}

// protectKernel makes the files in /proc that concern the whole machine read-only or empty. Their
// modes do not protect them if the worker runs as root.
func protectKernel() error {
	for _, path := range []string{
		"/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq",
		"/proc/acpi", "/proc/scsi",
	} {
		target := viewRoot + path
		if _, err := os.Stat(target); err != nil {
			continue // this kernel has none
		}
		if err := unix.Mount(target, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, path := range []string{
		"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list",
		"/proc/sched_debug", "/proc/kallsyms", "/proc/kmsg",
	} {
		if err := conceal(viewRoot+path, false); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// hostFiles returns the contents of /etc/hosts and /etc/resolv.conf, by path: those in the setup,
// or else those of the host.
func hostFiles(s *setup) map[string]string {
	files := map[string]string{"/etc/resolv.conf": s.DNS, "/etc/hosts": s.Hosts}
	for path, content := range files {
		if content == "" {
			b, err := os.ReadFile(path)
			if err != nil {
				delete(files, path)
				continue
			}
			files[path] = string(b)
		}
	}
	return files
}

// mountHostFiles mounts files, which has contents by path, over those of the host.
func mountHostFiles(files map[string]string) error {
	own := viewRoot + "/run/sandbox"
	if err := os.MkdirAll(own, 0o755); err != nil { //nolint:gosec // commands pass through it
		return err
	}
	for path, content := range files {
		source := own + "/" + filepath.Base(path)
		if err := os.WriteFile(source, []byte(content), 0o444); err != nil { //nolint:gosec // commands read it
			return err
		}
		target, err := os.Readlink(viewRoot + path)
		if err == nil { // it leads out of /etc, as systemd's does
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			if err := makePoint(viewRoot+target, false); err != nil {
				continue // a directory that is not visible; names cannot be resolved
			}
			path = target
		}
		if _, err := os.Stat(viewRoot + path); err != nil {
			continue // the host has no such file
		}
		if err := unix.Mount(source, viewRoot+path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// prepareNetwork brings up the loopback interface of the network namespace. For NetworkOutside it also
// makes an interface, and returns the one descriptor of its packets; see usernet.OpenInterface.
func prepareNetwork(n Network) (tun []int, err error) {
	if n == NetworkAll {
		return nil, nil
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil || n == NetworkNone {
		return nil, err
	}
	fd, err := usernet.OpenInterface()
	if err != nil {
		return nil, err
	}
	return []int{fd}, nil
}
