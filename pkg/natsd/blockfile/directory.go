package blockfile

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
)

// suffix is the suffix of the names of block files.
const suffix = ".blk"

// File is a block file.
type File struct {
	Index int // its number in the stream, from 1
	Path  string
}

// Name returns the name of the block file with an index.
func Name(index int) string { return strconv.Itoa(index) + suffix }

// Files returns the block files in a directory, sorted by index. A directory that does not exist has none.
func Files(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blockfile: %w", err)
	}
	var files []File
	for _, e := range entries {
		number, found := strings.CutSuffix(e.Name(), suffix)
		if index, err := strconv.Atoi(number); found && err == nil && index > 0 && e.Type().IsRegular() {
			files = append(files, File{index, filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Index, b.Index) })
	return files, nil
}

// Messages returns the directory of the block files of a stream in the store of a server. Account is "$G" where a
// server has no accounts.
func Messages(store, account, stream string) string {
	return filepath.Join(Stream(store, account, stream), "msgs")
}

// Stream returns the directory of a stream in the store of a server.
func Stream(store, account, stream string) string {
	return filepath.Join(store, "jetstream", account, "streams", stream)
}

// Streams returns the names of the streams in the store of a server that begin with a prefix, sorted.
func Streams(store, account, prefix string) (names []string, err error) {
	entries, err := os.ReadDir(Stream(store, account, ""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blockfile: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// indexFile is the file in which a server keeps what it knows of the blocks of a stream. Without the file, the server
// reads the blocks when it starts.
const indexFile = "index.db"

// DropIndex removes the index file of a directory of blocks, so that the server reads the blocks when it starts. It
// is no error if there is none. The server must not run.
func DropIndex(dir string) error {
	if err := os.Remove(filepath.Join(dir, indexFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blockfile: %w", err)
	}
	return nil
}
