package witness

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
)

// SyncInterval is how often the files are synced. A record is in the system's memory when it is made, so that
// it survives the process; of the last SyncInterval before a loss of power it may be lost.
const SyncInterval = time.Second

// slotBytes is the size of a slot. A file has two, which are written alternately: a write that is cut off
// leaves the other one intact.
const slotBytes = 256

// Files is a directory with the witnesses of the partitions that this process holds. It is safe for concurrent
// use.
type Files struct {
	dir    *os.Root
	logger *zap.Logger
	done   chan struct{}
	ended  chan struct{}

	mu    sync.Mutex
	files map[string]*File
}

// Open opens a directory, which it creates if it does not exist, and syncs the files in the background until
// Close. Two processes must not use one.
func Open(dir string, logger *zap.Logger) (*Files, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	f := &Files{
		dir: root, logger: logger, done: make(chan struct{}), ended: make(chan struct{}),
		files: map[string]*File{},
	}
	go func() {
		defer close(f.ended)
		tick := time.NewTicker(SyncInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f.sync()
			case <-f.done:
				return
			}
		}
	}()
	return f, nil
}

// Of returns the witness of a partition.
func (f *Files) Of(plane string, partition int) framelog.Witness {
	name := fileName(plane, partition)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files[name] == nil {
		f.files[name] = &File{name: name, dir: f.dir, logger: f.logger.With(zap.String("plane", plane),
			zap.Int("partition", partition))}
	}
	return f.files[name]
}

// sync syncs the files that were written since it was called last.
func (f *Files) sync() {
	f.mu.Lock()
	files := make([]*File, 0, len(f.files))
	for _, w := range f.files {
		files = append(files, w)
	}
	f.mu.Unlock()
	for _, w := range files {
		w.sync()
	}
}

// Close syncs and closes all files. Nothing may be recorded afterwards.
func (f *Files) Close() error {
	close(f.done)
	<-f.ended
	f.sync()
	var errs error
	for _, w := range f.files {
		errs = errors.Join(errs, w.close())
	}
	return errors.Join(errs, f.dir.Close())
}

// File is the witness of one partition.
type File struct {
	name   string
	dir    *os.Root
	logger *zap.Logger

	mu      sync.Mutex
	file    *os.File // nil before the first use
	count   uint64   // how many records were made, as the newest slot has it
	last    framelog.End
	buf     []byte
	dirty   bool // something was written since the last sync
	failing bool // the last write failed, and that was logged
}

// Last implements framelog.Witness. It reads the file, which another process may have written that held the partition
// meanwhile: then the count in the file is higher than the one in memory. A file that was written and has no readable
// record is an error, since a loss could not be noticed.
func (w *File) Last() (framelog.End, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.open(); err != nil {
		return framelog.End{}, err
	}
	count, last, err := read(w.file)
	if err == nil && count > w.count {
		w.count, w.last = count, last
	}
	return w.last, err
}

// open opens the file and reads the newest slot, at the first call. w.mu must be held.
func (w *File) open() error {
	if w.file != nil {
		return nil
	}
	file, err := w.dir.OpenFile(w.name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	if w.count, w.last, err = read(file); err != nil {
		return errors.Join(err, file.Close())
	}
	w.file = file
	return nil
}

// read returns the newest slot of a file, zeros if it has none.
func read(file *os.File) (count uint64, last framelog.End, err error) {
	slots := make([]byte, 2*slotBytes)
	n, err := io.ReadFull(io.NewSectionReader(file, 0, 2*slotBytes), slots)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, last, fmt.Errorf("witness: %w", err)
	}

	// The slot with the higher count is the newer one. A file that has neither was damaged, unless it is new.
	written := len(bytes.Trim(slots[:n], "\x00")) > 0
	for i := range 2 {
		c, end, ok := parse(slots[i*slotBytes : (i+1)*slotBytes])
		if ok && c > count {
			count, last = c, end
		}
	}
	if written && count == 0 {
		return 0, last, fmt.Errorf("witness: %s cannot be read, so that a loss at the end of this journal would not "+
			"be noticed; `quartet verify` tells how far the journal goes, and without the file the next start begins "+
			"a new one", file.Name())
	}
	return count, last, nil
}

// At returns the witness of a partition in a directory that another process may use; it only reads.
func At(dir, plane string, partition int) framelog.Witness {
	return &reader{filepath.Join(dir, fileName(plane, partition))}
}

// reader is a witness that is only read.
type reader struct{ path string }

// Last implements framelog.Witness. It returns the zero End if there is no file.
func (r *reader) Last() (framelog.End, error) {
	file, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return framelog.End{}, nil
	}
	if err != nil {
		return framelog.End{}, fmt.Errorf("witness: %w", err)
	}
	defer file.Close()
	_, last, err := read(file)
	return last, err
}

// Record implements framelog.Witness. It does nothing.
func (r *reader) Record(framelog.End) {}

// fileName returns the name of a partition's file.
func fileName(plane string, partition int) string { return plane + "-" + strconv.Itoa(partition) }

// Partitions returns how many partitions of a plane have a witness in a directory, counted up to the last that has one.
func Partitions(dir, plane string) (n int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("witness: %w", err)
	}
	for _, e := range entries {
		number, found := strings.CutPrefix(e.Name(), plane+"-")
		if i, err := strconv.Atoi(number); found && err == nil && i >= 0 {
			n = max(n, i+1)
		}
	}
	return n, nil
}

// Record implements framelog.Witness. If the file cannot be written, it logs that, and the record is lost.
func (w *File) Record(end framelog.End) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.open()
	if err == nil {
		w.buf = format(w.buf[:0], w.count+1, end)
		_, err = w.file.WriteAt(w.buf, int64((w.count+1)%2)*slotBytes) // over the older slot
	}
	if err != nil {
		if !w.failing {
			w.logger.Error("witness: what is written to this journal from now on cannot be witnessed", zap.Error(err))
		}
		w.failing = true
		return
	}
	w.count, w.last, w.dirty, w.failing = w.count+1, end, true, false
}

// sync syncs the file if something was written since.
func (w *File) sync() {
	w.mu.Lock()
	file, dirty := w.file, w.dirty
	w.dirty = false
	w.mu.Unlock()
	if !dirty {
		return
	}
	if err := file.Sync(); err != nil && !errors.Is(err, fs.ErrClosed) {
		w.logger.Error("witness: not synced", zap.Error(err))
		w.mu.Lock()
		w.dirty = true
		w.mu.Unlock()
	}
}

// close closes the file.
func (w *File) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// format appends a slot to dst: a checksum, its count and an end, as a line of text, filled up with spaces.
func format(dst []byte, count uint64, end framelog.End) []byte {
	text := strconv.FormatUint(count, 10) + " " + end.String()
	dst = fmt.Appendf(dst, "%08x %s", crc32.ChecksumIEEE([]byte(text)), text)
	for len(dst) < slotBytes-1 {
		dst = append(dst, ' ')
	}
	return append(dst, '\n')
}

// parse reads a slot. ok is false if it was not written completely, or damaged.
func parse(slot []byte) (count uint64, end framelog.End, ok bool) {
	sum, text, found := bytes.Cut(bytes.TrimRight(slot, " \n"), []byte{' '})
	if !found || string(sum) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)) {
		return 0, end, false
	}
	number, rest, _ := bytes.Cut(text, []byte{' '})
	count, err := strconv.ParseUint(string(number), 10, 64)
	if err == nil {
		end, err = framelog.ParseEnd(string(rest))
	}
	return count, end, err == nil
}
