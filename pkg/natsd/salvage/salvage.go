// Package salvage checks the block files of journals before a NATS server opens them, and keeps what the server would
// remove: it cuts a block at the first record that it cannot read, without a word.
//
// Owns: the copies of damaged blocks, below one directory for each stream.
// Never does: decide what belongs to a journal; `quartet repair` does, with the frames' hashes.
package salvage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/natsd/blockfile"
)

// Stream is a stream whose messages are never removed.
type Stream struct {
	Name     string
	Subjects []string // with which its subjects begin
	// Known is the last sequence number that the stream is known to have had. A record behind it that
	// cannot be read is one that was being written and was not acknowledged.
	Known uint64
	// Closed says that nothing is written to the stream any more, so that no record of it is incomplete for a good reason.
	Closed bool
}

// Config says what is checked.
type Config struct {
	Store   string // of the server, which must not run
	Account string // of the streams
	Dir     string // of the copies
	Streams []Stream
	Now     time.Time // names the copies
	Logger  *zap.Logger
}

// Found is a damaged block.
type Found struct {
	Stream string
	Block  string // path
	Copy   string // path of its copy
	Gaps   []blockfile.Gap
}

// Check reads all blocks of the streams. It copies a damaged one aside and then writes it again without the records that
// cannot be read, so that the server keeps those behind them, with their sequence numbers. A stream that lost its end
// goes on above the last known sequence number, so that none is used for two messages. A block without damage is not
// touched. If Check is interrupted, calling it again completes it.
func Check(cfg Config) (found []Found, err error) {
	began, bytes := time.Now(), int64(0)
	for _, s := range cfg.Streams {
		more, n, err := checkStream(cfg, s)
		if err != nil {
			return found, fmt.Errorf("salvage: stream %s: %w", s.Name, err)
		}
		found, bytes = append(found, more...), bytes+n
	}
	cfg.Logger.Info("checked the blocks of the journals", zap.Int64("bytes", bytes), zap.Int("damaged", len(found)), zap.Duration("took", time.Since(began)))
	return found, nil
}

// checkStream checks the blocks of one stream, and returns how many bytes they have.
func checkStream(cfg Config, s Stream) (found []Found, bytes int64, err error) {
	dir := blockfile.Messages(cfg.Store, cfg.Account, s.Name)
	files, err := blockfile.Files(dir)
	if err != nil || len(files) == 0 {
		return nil, 0, err
	}
	last := uint64(0)
	for i, file := range files {
		b, err := os.ReadFile(file.Path)
		if err != nil {
			return found, bytes, err
		}
		bytes += int64(len(b))
		var intact []blockfile.Record
		gaps, err := blockfile.Read(s.Name, file.Index, b, s.Subjects, func(r blockfile.Record) error {
			intact = append(intact, r)
			last = max(last, r.Seq)
			return nil
		})
		if err != nil {
			return found, bytes, err
		}
		end := i == len(files)-1
		torn := end && !s.Closed && len(gaps) == 1 && gaps[0].Tail() && last >= s.Known
		short := end && last < s.Known
		if len(gaps) > 0 && !torn {
			f := Found{Stream: s.Name, Block: file.Path, Gaps: gaps}
			if f.Copy, err = CopyAside(cfg.Dir, s.Name, file.Index, b, cfg.Now); err != nil {
				return found, bytes, err
			}
			found = append(found, f)
			cfg.Logger.Error("a block of a journal is damaged; it is copied aside, and `quartet repair` takes from the copy what it can",
				zap.String("stream", s.Name), zap.String("block", f.Block), zap.String("copy", f.Copy), zap.Stringers("gaps", gaps))
		}
		if len(gaps) > 0 && !torn || short {
			if short {
				intact = append(intact, blockfile.Record{Seq: s.Known, At: cfg.Now.UnixNano(), Erased: true})
			}
			if err := rewrite(dir, s.Name, file, intact); err != nil {
				return found, bytes, err
			}
		}
	}
	return found, bytes, nil
}

// rewrite replaces a block by one with the given records.
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

// CopyAside writes a copy of a block durably, below parent, and returns its path.
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

// Write writes a file and syncs it.
func Write(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// SyncDir syncs the names in a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
