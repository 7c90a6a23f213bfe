package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What commands only read, and what is hidden in it, does not change for an open sandbox: each directory that leads
// to something hidden is listed. It becomes a directory of the view, in which the entries that it had are mounted one
// by one, but for those that are hidden. What the host later puts there, or in place of an entry, does not appear: a
// mount that covers a hidden file would be gone as soon as the host renames another file to its name.
//
// Directories that commands write cannot be listed, since what a command makes there must arrive on the host. What is
// hidden in them is covered by a mount, and a guardian covers it again when it was replaced.

const (
	// maxListed is the number of entries up to which a directory is listed. A larger one that contains something hidden
	// is hidden itself: every entry is a mount.
	maxListed = 10_000
	// maxSearched is the number of entries of /etc, and of /opt, that are searched for what not every user can read.
	// Directories beyond it are hidden.
	maxSearched = 1 << 20
	// coverPeriod is the time between two looks at the hidden paths in directories that commands write.
	coverPeriod = 100 * time.Millisecond
	// coverAttempts is how often a hidden path is covered at most that the host replaces or removes after it was found.
	coverAttempts = 1000
	// searchPeriod is the least time between two searches of /etc and /opt, and searchShare how many times longer than
	// a search the pause after it is: each open sandbox searches.
	searchPeriod, searchShare = 5 * time.Second, 200
)

// listing is a directory of the host that is shown without what is hidden in it.
type listing struct {
	dir     *os.File
	entries []fs.DirEntry
}

// openListing reads the directory at path. It returns nil if the directory is too large to be listed, was removed, or
// cannot be read.
func openListing(path string) (*listing, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &listing{dir: os.NewFile(uintptr(fd), path)}
	l.entries, err = l.dir.ReadDir(maxListed + 1)
	if err != nil && !errors.Is(err, io.EOF) || len(l.entries) > maxListed {
		return nil, errors.Join(err, l.dir.Close())
	}
	return l, nil
}

// attach mounts the entries at their paths in the view, but for those in omitted and for what is neither a file, a
// directory nor a symbolic link. It closes the listing.
func (l *listing) attach(path string, omitted map[string]bool) error {
	defer func() { _ = l.dir.Close() }() // nothing was written to it
	dirfd := int(l.dir.Fd())
	for _, e := range l.entries {
		inside := filepath.Join(path, e.Name())
		if omitted[inside] {
			continue
		}
		err := attachEntry(dirfd, e, viewRoot+inside)
		// it was removed; there is a directory of the sandbox
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", inside, err)
		}
	}
	return nil
}

// attachEntry mounts an entry of a directory read-only at target.
func attachEntry(dirfd int, e fs.DirEntry, target string) error {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	switch e.Type() {
	case fs.ModeSymlink:
		link := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dirfd, e.Name(), link)
		if err != nil {
			return err
		}
		return unix.Symlink(string(link[:n]), target)
	case fs.ModeDir:
		flags |= unix.AT_RECURSIVE
	case 0:
	default:
		return nil
	}
	tree, err := unix.OpenTree(dirfd, e.Name(), flags)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }() // it is mounted
	if err := restrictTree(tree, true); err != nil {
		return err
	}
	if err := makePoint(target, e.IsDir()); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// listed returns the directories whose entries must be mounted one by one (see listing), so that nothing appears at
// the hidden paths in the read-only mounts: those from the mount to the directory of the hidden path that exist, an
// outer one before those inside of it. A directory that commands write is not among them.
func listed(mounts, writable, hidden []string) (dirs []string) {
	for _, path := range hidden {
		for _, top := range mounts {
			if !within(path, top) || slices.ContainsFunc(hidden, func(outer string) bool {
				return outer == top ||
					within(path, outer) && within(outer, top)
			}) {
				continue // it is not in this mount, or a directory around it is hidden
			}
			for dir := filepath.Dir(path); len(dir) >= len(top); dir = filepath.Dir(dir) {
				inRoot := slices.ContainsFunc(writable, func(root string) bool {
					return within(root, top) &&
						beneath(dir, root)
				})
				if st, err := os.Lstat(dir); err == nil && st.IsDir() && !inRoot && !slices.Contains(dirs, dir) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	return dirs
}

// conceal mounts an empty directory over a directory, and /dev/null over a file, if target exists.
func conceal(target string, dir bool) error {
	if _, err := os.Lstat(target); err != nil {
		return nil //nolint:nilerr // it is not visible
	}
	if dir {
		return unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k")
	}
	return unix.Mount("/dev/null", target, "", unix.MS_BIND, "")
}

// searched returns the directories in which what not every user can read is hidden, as real paths.
func searched() (dirs []string) {
	for _, dir := range []string{"/etc", "/opt"} {
		if found, err := filepath.EvalSymlinks(dir); err == nil {
			dirs = append(dirs, found)
		}
	}
	return dirs
}

// notPublic returns the files and directories in dir that not every user of the host can read, and directories that
// it did not search because there are too many entries. It leaves out symbolic links, and what is at or below the
// paths in except. The caller must hide what it returns: the commands of a worker that runs as root could read it.
func notPublic(dir string, except []string) (paths []string) {
	left := maxSearched
	for queue := []string{dir}; len(queue) > 0; queue = queue[1:] {
		if left <= 0 {
			return append(paths, queue...)
		}
		entries, err := os.ReadDir(queue[0])
		if err != nil {
			continue // it cannot be read, or does not exist any more
		}
		left -= len(entries)
		for _, e := range entries {
			path := filepath.Join(queue[0], e.Name())
			info, err := e.Info()
			if err != nil || info.Mode()&fs.ModeSymlink != 0 ||
				slices.ContainsFunc(except, func(root string) bool { return beneath(path, root) }) {
				continue
			}
			switch {
			case info.Mode()&0o004 == 0, info.IsDir() && info.Mode()&0o001 == 0:
				paths = append(paths, path)
			case info.IsDir():
				queue = append(queue, path)
			}
		}
	}
	return paths
}

// guardian covers what appears at hidden paths of an open sandbox. Its methods are safe for concurrent use.
type guardian struct {
	level  Level
	paths  []string // the hidden ones in directories that commands write, and at LevelLandlock in all that they read
	search []string // directories in which what not every user can read is hidden
	own    []string // the directories that commands write

	mu     sync.Mutex
	covers map[uint64]bool // devices of the empty directories over hidden ones
}

// newGuardian returns the guardian of a sandbox. It must be called before the sandbox has its view.
func newGuardian(s *setup) *guardian {
	p := &s.Policy
	g := &guardian{
		level: p.Level, own: append([]string{Home(p.Dir), Temp(p.Dir)}, p.Writable...),
		covers: make(map[uint64]bool),
	}
	dirs := p.Writable
	if g.level == LevelLandlock {
		dirs = append(slices.Clone(dirs), s.Mounts...)
	} else {
		g.search = searched()
	}
	for _, path := range p.Hidden {
		inside := slices.ContainsFunc(dirs, func(dir string) bool { return beneath(path, dir) })
		if inside && !slices.ContainsFunc(p.Hidden, func(outer string) bool {
			return within(path, outer) && slices.ContainsFunc(dirs, func(dir string) bool { return within(outer, dir) })
		}) {
			g.paths = append(g.paths, path)
		}
	}
	return g
}

// look covers what is visible at a hidden path. After an error the sandbox must end.
func (g *guardian) look() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, path := range g.paths {
		if g.level == LevelLandlock {
			// What a symbolic link leads to is another path.
			if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink == 0 {
				return fmt.Errorf("%s must not exist for commands, and namespaces only can hide it", path)
			}
			continue
		}
		if err := whileReplaced(func() error { return g.cover(path) }); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// whileReplaced calls cover, and calls it again while it returns fs.ErrNotExist, at most coverAttempts times in all.
func whileReplaced(cover func() error) error {
	err := cover()
	for n := 1; n < coverAttempts && errors.Is(err, fs.ErrNotExist); n++ {
		err = cover()
	}
	return err
}

// cover covers what is visible at a hidden path, unless it is covered, and makes the directories that lead to it
// mount points, which cannot be renamed. It returns fs.ErrNotExist if the host replaced or removed one of them
// meanwhile. The caller holds mu.
func (g *guardian) cover(path string) error {
	st, err := os.Stat(path)
	if err != nil || g.covered(path, st) {
		return nil
	}
	if slices.ContainsFunc(g.own, func(dir string) bool { return within(dir, path) }) {
		return errors.New("it was replaced, with directories of commands in it")
	}
	if err := g.conceal(path, st.IsDir()); err != nil {
		return err
	}
	for _, root := range g.own {
		if !within(path, root) {
			continue
		}
		var parents []string
		for dir := filepath.Dir(path); dir != root; dir = filepath.Dir(dir) {
			parents = append(parents, dir)
		}
		for _, dir := range slices.Backward(parents) {
			var st unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BASIC_STATS, &st); err != nil ||
				st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
				continue
			}
			if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// covered reports whether what is at path is a cover.
func (g *guardian) covered(path string, st fs.FileInfo) bool {
	if !st.IsDir() {
		return st.Mode()&fs.ModeCharDevice != 0 // commands cannot make devices
	}
	var dir unix.Stat_t
	return unix.Stat(path, &dir) != nil || g.covers[dir.Dev]
}

// conceal is the function conceal. It remembers the cover of a directory, as the root of the sandbox sees it.
func (g *guardian) conceal(target string, dir bool) error {
	if err := conceal(target, dir); err != nil || !dir {
		return err
	}
	// The descriptor remains open, so that no other file system gets the number of the device.
	fd, err := unix.Open(target, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was not visible
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	g.covers[st.Dev] = true
	return nil
}

// searchAll conceals what is in /etc and /opt and not every user can read.
func (g *guardian) searchAll() error {
	for _, dir := range g.search {
		for _, path := range notPublic(dir, g.own) {
			st, err := os.Lstat(path)
			if err != nil || st.Mode()&fs.ModeSymlink != 0 {
				continue // it is not visible any more
			}
			if err := conceal(path, st.IsDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("hide %s: %w", path, err)
			}
		}
	}
	return nil
}

// run looks and searches until one of them fails, and returns why.
func (g *guardian) run() error {
	looks := time.NewTicker(coverPeriod)
	defer looks.Stop()
	if len(g.paths) == 0 {
		looks.Reset(math.MaxInt64)
	}
	searches := time.NewTimer(searchPeriod)
	if len(g.search) == 0 {
		searches.Stop()
	}
	for {
		select {
		case <-looks.C:
			if err := g.look(); err != nil {
				return err
			}
		case <-searches.C:
			begin := time.Now()
			if err := g.searchAll(); err != nil {
				return err
			}
			searches.Reset(max(searchPeriod, searchShare*time.Since(begin)))
		}
	}
}
