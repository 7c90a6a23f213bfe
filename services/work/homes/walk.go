package homes

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"quartet/pkg/fault"
	"quartet/pkg/yield"
)

// MaxDepth is how many levels of directories a recursive walk visits.
const MaxDepth = 16

// maxSearchedBytes is the size of the largest file that Entry.Text returns.
const maxSearchedBytes = 4 << 20

// ErrStop is returned by the function that Walk calls to end the walk early.
var ErrStop = errors.New("homes: stop")

// Entry is a file or directory that Walk visits.
type Entry struct {
	Path string // relative to the home, with slashes
	Info fs.FileInfo
	tree fs.FS // the home
}

// Walk calls visit for every file and directory below the directory start, or for start itself
// if it is a file. The order is that of the paths compared part by part. It visits at most
// depth levels, skips the paths up to and including after (none: "") and files that are being
// written, and follows no links. It returns the first error of visit, except ErrStop, which
// ends the walk without an error; its own errors are errors of the API. start is "." for the
// home, or a result of Path.
func (h *Home) Walk(ctx context.Context, start string, depth int, after string, visit func(Entry) error) error {
	if h == nil {
		if start == "." {
			return nil
		}
		return Error(start, fs.ErrNotExist)
	}
	w := walk{ctx: ctx, tree: h.root.FS(), depth: depth, visit: visit}
	st, err := fs.Stat(w.tree, start)
	switch {
	case err != nil:
		return Error(start, err)
	case st.IsDir():
		if after != "" {
			w.after = strings.Split(after, "/")
		}
		err = w.directory(start, 1)
	case after == "": // otherwise the file was visited before
		err = visit(Entry{start, st, w.tree})
	}
	if errors.Is(err, ErrStop) {
		return nil
	}
	return err
}

// walk is one call of Walk.
type walk struct {
	ctx   context.Context //nolint:containedctx // of one call
	tree  fs.FS
	depth int      // levels below the first directory that are visited
	after []string // the parts of the path up to which nothing is visited
	visit func(Entry) error
}

// directory visits what is below dir, whose entries are at the given level, from 1.
func (w *walk) directory(dir string, level int) error {
	entries, err := fs.ReadDir(w.tree, dir)
	if err != nil {
		return Error(dir, err)
	}
	for _, e := range entries {
		yield.Now() // a long walk delays no other call
		if err := w.ctx.Err(); err != nil {
			return fault.From(err)
		}
		if strings.HasPrefix(e.Name(), stagedPrefix) {
			continue
		}
		// Visit what is behind after. Of what is not, only after itself and the directories above it may have something
		// below that is.
		p := path.Join(dir, e.Name())
		parts := strings.Split(p, "/")
		switch {
		case w.after == nil || slices.Compare(parts, w.after) > 0:
			st, err := e.Info()
			if err != nil { // it was removed meanwhile
				continue
			}
			if err := w.visit(Entry{p, st, w.tree}); err != nil {
				return err
			}
		case len(w.after) < len(parts) || !slices.Equal(w.after[:len(parts)], parts):
			continue // all below it was visited before
		}
		if e.IsDir() && level < w.depth {
			if err := w.directory(p, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Text returns the content of a text file of at most 4 MiB, and false for other files and
// those that cannot be read.
func (e Entry) Text() ([]byte, bool) {
	if e.Info.Size() > maxSearchedBytes {
		return nil, false
	}
	f, err := e.tree.Open(e.Path)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	content, err := readAtMost(f, maxSearchedBytes)
	return content, err == nil && IsText(content)
}

// IsText reports whether b is UTF-8 without NUL.
func IsText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }
