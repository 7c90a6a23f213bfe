package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
)

// Segment is a segment of a journal as the files of a store show it.
type Segment struct {
	jetlog.Place
	Dir        string
	First      uint64 // sequence number at which it begins
	Partitions int    // that its plane has; 0 if that cannot be read
	Bytes      int64  // of its blocks
	// Frames says that the segment has a frame. A segment that was only prepared has none: its stream has only a
	// record that says where it begins.
	Frames bool
}

// Segments returns the segments of a plane's journal in a store, ordered by Place. The server may run: a file that it
// removes during the call counts as removed and is no error. A store that does not exist has no segments.
func Segments(store, account, plane string) (all []Segment, err error) {
	entries, err := os.ReadDir(filepath.Dir(blockfile.Stream(store, account, "any")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		p, ok := jetlog.ParseStream(e.Name())
		if !ok || p.Plane != plane || !e.IsDir() {
			continue
		}
		s := Segment{Place: p, Dir: blockfile.Stream(store, account, e.Name())}
		s.readConfig()
		files, err := blockfile.Files(filepath.Join(s.Dir, "msgs"))
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", e.Name(), err)
		}
		for _, f := range files {
			info, err := os.Stat(f.Path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			s.Bytes += info.Size()
		}
		if s.Frames, err = s.hasFrames(files); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Segment) int { return a.Compare(b.Place) })
	return all, nil
}

// hasFrames reports whether one of the blocks has a message. It reads the blocks only if they have 4096 bytes or less
// together: larger ones have a message.
func (s *Segment) hasFrames(files []blockfile.File) (found bool, err error) {
	if s.Bytes > 4096 {
		return true, nil
	}
	for _, f := range files {
		b, err := os.ReadFile(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if _, err := blockfile.Read(s.Stream(), f.Index, b, []string{jetlog.SubjectPrefix(s.Plane)},
			func(r blockfile.Record) error {
				found = found || r.Message()
				return nil
			}); err != nil {
			return false, err
		}
	}
	return found, nil
}

// readConfig reads what the server wrote down of the stream's configuration. It may be damaged.
func (s *Segment) readConfig() {
	s.First = 1
	raw, err := os.ReadFile(filepath.Join(s.Dir, "meta.inf"))
	if err != nil {
		return
	}
	var meta struct {
		FirstSeq uint64 `json:"first_seq"`
		Metadata map[string]string
	}
	if json.Unmarshal(raw, &meta) != nil {
		return
	}
	s.First = max(meta.FirstSeq, 1)
	if n, err := jetlog.PartitionsIn(meta.Metadata); err == nil {
		s.Partitions = n
	}
}
