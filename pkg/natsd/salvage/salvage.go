// Package salvage checks the block files of journals before a NATS server opens them, and keeps what the server would
// remove: a server cuts a damaged block at the first record that it cannot read, without reporting that.
//
// Owns: the copies of damaged blocks, below one directory for each stream.
// Never does: decide which records belong to a journal; `quartet repair` decides that by the frames' hashes.
package salvage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/natsd/blockfile"
)

// Stream is a stream whose messages are never removed.
type Stream struct {
	Name     string
	Subjects []string // prefixes of the subjects of its messages
	// Known is the highest sequence number that the stream is known to have had. If a record behind it, at
	// the end of the stream, cannot be read, the record was being written and was not acknowledged.
	Known uint64
	// Closed says that nothing is written to the stream any more, so that an incomplete last record is damage.
	Closed bool
}

// Config says what is checked.
type Config struct {
	Store   string // directory of the server's store; the server must not run
	Account string // account of the streams
	Dir     string // directory of the copies
	Streams []Stream
	Now     time.Time // the time in the names of the copies
	Logger  *zap.Logger
}

// Found is a damaged block.
type Found struct {
	Stream string
	Block  string // path
	Copy   string // path of its copy
	Gaps   []blockfile.Gap
}

// maxReaders is how many streams are checked at a time at most. Each has a block in memory, which has up to 8 MiB.
const maxReaders = 4

// Check reads all blocks of the streams, several streams at a time. It copies each damaged block aside, and then
// rewrites the block without the records that cannot be read, so that the server keeps the records behind them,
// with their sequence numbers. If the last block of a stream ends below the known sequence number, Check adds an
// erased record with that number, so that the server does not use a number for two messages. It does not change
// other blocks. found is in the order of the streams. If Check was interrupted or failed for a stream, it can be
// called again.
func Check(cfg Config) (found []Found, err error) {
	began, size := time.Now(), int64(0)
	all := make([]checked, len(cfg.Streams))
	var next atomic.Int64
	var readers sync.WaitGroup
	for range min(maxReaders, runtime.GOMAXPROCS(0), len(cfg.Streams)) {
		readers.Go(func() {
			r := reader{cfg: cfg}
			for i := next.Add(1); int(i) <= len(cfg.Streams); i = next.Add(1) {
				all[i-1] = r.check(cfg.Streams[i-1])
			}
		})
	}
	readers.Wait()
	for i, c := range all {
		found, size = append(found, c.found...), size+c.bytes
		if c.err != nil && err == nil {
			err = fmt.Errorf("salvage: stream %s: %w", cfg.Streams[i].Name, c.err)
		}
	}
	if err != nil {
		return found, err
	}
	cfg.Logger.Info("checked the blocks of the journals", zap.Int64("bytes", size), zap.Int("damaged", len(found)),
		zap.Duration("took", time.Since(began)))
	return found, nil
}

// checked is what the check of one stream found.
type checked struct {
	found []Found
	bytes int64 // of the blocks
	err   error
}

// reader checks streams, one after the other.
type reader struct {
	cfg    Config
	block  bytes.Buffer       // the one that was read last
	intact []blockfile.Record // of that block
}

// read returns the content of a file. It is valid until the next call.
func (r *reader) read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r.block.Reset()
	r.block.Grow(int(info.Size()) + bytes.MinRead)
	_, err = r.block.ReadFrom(f)
	return r.block.Bytes(), err
}

// check checks the blocks of one stream.
func (r *reader) check(s Stream) (c checked) {
	dir := blockfile.Messages(r.cfg.Store, r.cfg.Account, s.Name)
	files, err := blockfile.Files(dir)
	if err != nil {
		c.err = err
		return c
	}
	last := uint64(0)
	for i, file := range files {
		if last, err = r.checkBlock(s, dir, file, i == len(files)-1, last, &c); err != nil {
			c.err = err
			return c
		}
	}
	return c
}

// checkBlock checks one block, and adds to c what it found. end says that the block is the last one of its stream.
// last is the highest sequence number in the blocks before; checkBlock returns the highest one up to the end of
// this block.
func (r *reader) checkBlock(s Stream, dir string, file blockfile.File, end bool, last uint64, c *checked) (uint64,
	error,
) {
	b, err := r.read(file.Path)
	if err != nil {
		return last, err
	}
	c.bytes += int64(len(b))
	r.intact = r.intact[:0]
	gaps, err := blockfile.Read(s.Name, file.Index, b, s.Subjects, func(rec blockfile.Record) error {
		r.intact = append(r.intact, rec)
		last = max(last, rec.Seq)
		return nil
	})
	if err != nil {
		return last, err
	}
	torn := end && !s.Closed && len(gaps) == 1 && gaps[0].Tail() && last >= s.Known
	short := end && last < s.Known
	if len(gaps) > 0 && !torn {
		f := Found{Stream: s.Name, Block: file.Path, Gaps: gaps}
		if f.Copy, err = CopyAside(r.cfg.Dir, s.Name, file.Index, b, r.cfg.Now); err != nil {
			return last, err
		}
		c.found = append(c.found, f)
		r.cfg.Logger.Error("a block of a journal is damaged; it is copied aside, and `quartet repair` takes from the "+
			"copy what it can",
			zap.String("stream", s.Name), zap.String("block", f.Block), zap.String("copy", f.Copy),
			zap.Stringers("gaps", gaps))
	}
	if len(gaps) > 0 && !torn || short {
		if short {
			r.intact = append(r.intact, blockfile.Record{Seq: s.Known, At: r.cfg.Now.UnixNano(), Erased: true})
		}
		return last, rewrite(dir, s.Name, file, r.intact)
	}
	return last, nil
}

// rewrite replaces a block, durably, by one with the given records, and removes the server's index of the blocks.
func rewrite(dir, stream string, file blockfile.File, records []blockfile.Record) error {
	sum := blockfile.NewSum(stream, file.Index)
	var b []byte
	for _, r := range records {
		b = sum.Append(b, r)
	}
	if err := Write(file.Path+".salvaging", b); err != nil {
		return err
	}
	// The server must not believe what it knows of the former block.
	if err := blockfile.DropIndex(dir); err != nil {
		return err
	}
	if err := os.Rename(file.Path+".salvaging", file.Path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// CopyAside writes b, the content of a block, durably to a file below parent, and returns the path of the file.
func CopyAside(parent, stream string, index int, b []byte, now time.Time) (string, error) {
	dir := filepath.Join(parent, stream)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, now.UTC().Format("20060102T150405.000")+"-"+blockfile.Name(index))
	if err := Write(path, b); err != nil {
		return "", err
	}
	return path, errors.Join(SyncDir(dir), SyncDir(parent))
}

// Copies returns the copies of blocks of a stream, the newest first.
func Copies(dir, stream string) ([]blockfile.File, error) {
	entries, err := os.ReadDir(filepath.Join(dir, stream))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("salvage: %w", err)
	}
	var files []blockfile.File
	for _, e := range entries {
		_, number, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".blk"), "-")
		if index, err := strconv.Atoi(number); err == nil && e.Type().IsRegular() {
			files = append(files, blockfile.File{Index: index, Path: filepath.Join(dir, stream, e.Name())})
		}
	}
	slices.SortFunc(files, func(a, b blockfile.File) int { return cmp.Compare(b.Path, a.Path) })
	return files, nil
}

// Write writes a file and syncs its content. The name of a new file is durable only after SyncDir.
func Write(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// SyncDir syncs a directory, which makes the names of the files in it durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
