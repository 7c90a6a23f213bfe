package archive

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of files: segment-<number>-<random>.frames, and catalog-<version>.
const (
	segmentPrefix = "segment-"
	segmentSuffix = ".frames"
	catalogPrefix = "catalog-"
	tempSuffix    = ".tmp"
)

// keptCatalogs is how many catalogs are kept. Only the newest one counts; the one before is for people.
const keptCatalogs = 2

// unfinishedTerm is how long after its last write an unfinished file of a shared directory is taken for that of a
// process that was killed.
const unfinishedTerm = 10 * time.Minute

// Directory is a Store in a directory: a file for each segment of a partition, and one for each of the last catalogs.
// The file system must have atomic renames and hard links, and show a file to every process as soon as it is there.
type Directory struct {
	dir string
	// shared says that several processes may write at a time. Otherwise one may, and store one segment at a time.
	shared bool
}

var _ Store = (*Directory)(nil)

// NewDirectory returns the store of a partition below a directory. Its directory is made when something is stored.
func NewDirectory(dir, plane string, partition int) *Directory {
	return &Directory{dir: filepath.Join(dir, plane+"-"+strconv.Itoa(partition))}
}

// MarkFile is a file of a shared directory that says to which installation it belongs. Nothing is stored where it is
// missing, as where a volume is not mounted any more.
const MarkFile = "installation"

// NewSharedDirectory is NewDirectory for a directory to which several processes may write at the same time.
func NewSharedDirectory(dir, plane string, partition int) *Directory {
	s := NewDirectory(dir, plane, partition)
	s.shared = true
	return s
}

// DirectoryPartitions returns how many partitions of a plane have a directory below dir, counted up to the last that
// has one.
func DirectoryPartitions(dir, plane string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("archive: %w", err)
	}
	n := 0
	for _, e := range entries {
		number, found := strings.CutPrefix(e.Name(), plane+"-")
		if i, err := strconv.Atoi(number); found && err == nil && i >= 0 {
			n = max(n, i+1)
		}
	}
	return n, nil
}

// Dir returns the directory of the store: <plane>-<partition> in the one that New was given. It may not exist yet.
func (s *Directory) Dir() string { return s.dir }

// Empty reports whether the store has no directory yet, so nothing was ever stored.
func (s *Directory) Empty(context.Context) (bool, error) {
	_, err := os.Lstat(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("archive: %w", err)
	}
	return false, nil
}

// PutAside moves the file that is stored under a name to the directory dir of the same file system, durably. It is no
// error if there is no such file.
func (s *Directory) PutAside(_ context.Context, name, dir string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%w: %s", ErrNoObject, name)
	}
	err := os.Rename(filepath.Join(s.dir, name), filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return errors.Join(syncDir(s.dir), syncDir(dir))
}

// open opens the directory. It is ErrNoObject if there is none.
func (s *Directory) open() (*os.Root, error) {
	root, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoObject, err)
	}
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return root, nil
}

// directoryDraft is a file that is being written. The last 8 bytes of a file are the length of its last object.
type directoryDraft struct {
	root   *os.Root
	temp   string // name of the file until Commit; "" afterwards
	name   string // its name from then on
	file   *os.File
	offset uint64 // of the next object
	last   int    // bytes of the last object
}

// Begin implements archive.Store. It removes the unfinished files of processes that ended while they wrote: their
// frames may have lines that are erased by now.
func (s *Directory) Begin(_ context.Context, segment uint64) (Draft, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	root, err := s.open()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s%d-%s%s", segmentPrefix, segment, unique(), segmentSuffix)
	f, err := root.OpenFile(name+tempSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("archive: %w", err)
	}
	d := &directoryDraft{root: root, temp: name + tempSuffix, name: name, file: f}
	if err := s.removeUnfinished(d); err != nil {
		d.Close()
		return nil, fmt.Errorf("archive: %w", err)
	}
	return d, nil
}

// prepare makes the directory of the partition. In a shared directory it fails if MarkFile is not there.
func (s *Directory) prepare() error {
	parent := filepath.Dir(s.dir)
	if s.shared {
		if _, err := os.Stat(filepath.Join(parent, MarkFile)); err != nil {
			return fmt.Errorf("archive: %w; see whether the volume is mounted", err)
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return syncDir(parent)
}

// removeUnfinished removes the unfinished files of other drafts than d; in a shared directory only those to which
// nothing was written for unfinishedTerm, by the clock of the file system.
func (s *Directory) removeUnfinished(d *directoryDraft) error {
	now, err := d.file.Stat()
	if err != nil {
		return err
	}
	unfinished, err := s.files(segmentPrefix, tempSuffix)
	for n := range unfinished {
		if n == d.temp {
			continue
		}
		info, statErr := d.root.Stat(n)
		if statErr == nil && s.shared && now.ModTime().Sub(info.ModTime()) <= unfinishedTerm {
			continue
		}
		if statErr == nil {
			statErr = d.root.Remove(n)
		}
		if !errors.Is(statErr, fs.ErrNotExist) { // else it was committed or removed meanwhile
			err = errors.Join(err, statErr)
		}
	}
	return err
}

// unique returns a part of a name that no other one has.
func unique() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return hex.EncodeToString(random[:])
}

// Add implements archive.Draft.
func (d *directoryDraft) Add(_ context.Context, object []byte) (uint64, error) {
	offset := d.offset
	if _, err := d.file.Write(object); err != nil {
		return 0, fmt.Errorf("archive: %w", err)
	}
	d.offset, d.last = d.offset+uint64(len(object)), len(object)
	return offset, nil
}

// Commit implements archive.Draft. It syncs the file, and then gives it its name.
func (d *directoryDraft) Commit(context.Context) (string, error) {
	_, err := d.file.Write(binary.BigEndian.AppendUint64(nil, uint64(d.last)))
	if err == nil {
		err = d.file.Sync()
	}
	if err == nil {
		err = d.file.Close()
	}
	if err == nil {
		err = d.root.Rename(d.temp, d.name)
	}
	if err == nil {
		d.temp = ""
		err = syncRoot(d.root)
	}
	if err != nil {
		return "", fmt.Errorf("archive: %w", err)
	}
	return d.name, nil
}

// Close implements archive.Draft.
func (d *directoryDraft) Close() {
	if d.temp != "" {
		_ = d.file.Close()
		_ = d.root.Remove(d.temp)
	}
	_ = d.root.Close()
}

// Get implements archive.Store.
func (s *Directory) Get(_ context.Context, name string, at uint64, n int64) ([]byte, error) {
	b, _, err := s.part(name, func(size int64) (int64, int64) { return int64(at), n })
	return b, err
}

// Last implements archive.Store. The last 8 bytes of a file are the length of its last object, which is before them.
func (s *Directory) Last(_ context.Context, name string) ([]byte, uint64, error) {
	length, lengthAt, err := s.part(name, func(size int64) (int64, int64) { return size - 8, 8 })
	if err != nil {
		return nil, 0, err
	}
	n := int64(binary.BigEndian.Uint64(length))
	return s.part(name, func(int64) (int64, int64) { return int64(lengthAt) - n, n })
}

// part reads the part of a file that locate returns for the file's size, and returns its content and offset. The error
// is ErrNoObject if there is no such file or part.
func (s *Directory) part(name string, locate func(size int64) (offset, n int64)) (b []byte, offset uint64, err error) {
	root, err := s.open()
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %s", ErrNoObject, name)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("archive: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("archive: %w", err)
	}
	start, n := locate(info.Size())
	if start < 0 || n < 0 || n > info.Size() || start > info.Size()-n {
		return nil, 0, fmt.Errorf("%w: %s has %d bytes", ErrNoObject, name, info.Size())
	}
	b = make([]byte, n)
	if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("archive: %w", err)
	}
	return b, uint64(start), nil
}

// files returns the numbers of the files whose names have a prefix and suffix.
func (s *Directory) files(prefix, suffix string) (map[string]uint64, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	numbers := map[string]uint64{}
	for _, e := range entries {
		rest, hasPrefix := strings.CutPrefix(e.Name(), prefix)
		rest, hasSuffix := strings.CutSuffix(rest, suffix)
		number, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.ParseUint(number, 10, 64); hasPrefix && hasSuffix && err == nil &&
			e.Type().IsRegular() {
			numbers[e.Name()] = n
		}
	}
	return numbers, nil
}

// Names implements archive.Store.
func (s *Directory) Names(context.Context) (map[string]uint64, error) {
	return s.files(segmentPrefix, segmentSuffix)
}

// Remove implements archive.Store.
func (s *Directory) Remove(_ context.Context, name string) error {
	root, err := s.open()
	if errors.Is(err, ErrNoObject) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// Catalog implements archive.Store. If the newest catalog cannot be read because a newer one has replaced it
// meanwhile, Catalog reads that one.
func (s *Directory) Catalog(context.Context) ([]byte, uint64, error) {
	for { // again if it is replaced meanwhile
		name, version, err := s.newest()
		if err != nil || version == 0 {
			return nil, 0, err
		}
		b, _, err := s.part(name, func(size int64) (int64, int64) { return 0, size })
		if err == nil {
			return b, version, nil
		}
		if again, _, againErr := s.newest(); againErr != nil || again == name {
			return nil, 0, err
		}
	}
}

// newest returns the name and version of the newest catalog; 0 if there is none.
func (s *Directory) newest() (name string, version uint64, err error) {
	versions, err := s.files(catalogPrefix, "")
	for n, v := range versions {
		if v > version && n == catalogPrefix+strconv.FormatUint(v, 10) { // a temporary file has a longer name
			name, version = n, v
		}
	}
	return name, version, err
}

// ReplaceCatalog implements archive.Store. Of two writers of the same version one succeeds, since a link cannot be
// made under a name that exists.
func (s *Directory) ReplaceCatalog(_ context.Context, version uint64, content []byte) error {
	if err := s.prepare(); err != nil {
		return err
	}
	root, err := s.open()
	if err != nil {
		return err
	}
	defer root.Close()
	if _, newest, err := s.newest(); err != nil || newest != version {
		return errors.Join(ErrReplaced, err)
	}
	return s.create(root, version+1, content)
}

// create stores the catalog with a version, durably, or returns ErrReplaced if there is one, or a newer one.
func (s *Directory) create(root *os.Root, version uint64, content []byte) error {
	name := catalogPrefix + strconv.FormatUint(version, 10)
	temp := name + "-" + unique() + tempSuffix
	defer func() { _ = root.Remove(temp) }()
	if err := writeSynced(root, temp, content); err != nil {
		return err
	}
	err := root.Link(temp, name)
	if errors.Is(err, fs.ErrExist) {
		return ErrReplaced
	}
	if err == nil {
		err = syncRoot(root)
	}
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}

	// If others replaced the catalog several times meanwhile, the one with this version had been removed again, so
	// that it could be created once more.
	if _, newest, err := s.newest(); err != nil || newest != version {
		if newest > version {
			_ = root.Remove(name)
		}
		return errors.Join(ErrReplaced, err)
	}
	if version > keptCatalogs {
		_ = root.Remove(catalogPrefix + strconv.FormatUint(version-keptCatalogs, 10))
	}
	return nil
}

// writeSynced writes a file and makes its content durable; its name is durable after syncRoot.
func writeSynced(root *os.Root, name string, content []byte) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// syncRoot makes the names in a directory durable.
func syncRoot(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}
