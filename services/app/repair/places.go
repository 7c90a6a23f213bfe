package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"quartet/pkg/archive"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
)

// The places where copies of frames are, in the order in which they are preferred.
const (
	placeStore     = iota // the blocks of the damaged store
	placeSalvage          // copies of its blocks from before a server cut them
	placeCorrected        // records in which one changed bit was found
	placeOther            // the store of another server, or an older copy
	placeBackup
)

// placeNames name the places for people.
var placeNames = [...]string{"the journal", "salvaged blocks", "corrected bits", "another store", "the backup"}

// stream has the copies of the frames of one plane's journal.
type stream struct {
	plane      string
	partitions int // as far as the stream, its frames or the backup tell
	exists     bool
	copies     map[int][]*copyOf // by partition
	gaps       []string          // what cannot be read in its blocks
	newest     uint64            // sequence number in any of the places
}

// add adds a copy. Subjects that are not of a partition are left out.
func (s *stream) add(c *copyOf) {
	number, found := strings.CutPrefix(c.subject, jetlog.SubjectPrefix(s.plane))
	i, err := strconv.Atoi(number)
	if !found || err != nil || i < 0 {
		return
	}
	s.partitions = max(s.partitions, i+1)
	s.newest = max(s.newest, c.seq)
	s.copies[i] = append(s.copies[i], c)
}

// stored returns the frames of a partition that are in the store itself.
func (s *stream) stored(partition int) (all []*copyOf) {
	for _, f := range s.copies[partition] {
		if f.place == placeStore {
			all = append(all, f)
		}
	}
	return all
}

// record adds the message of a record.
func (s *stream) record(r blockfile.Record, place int) {
	if r.Erased {
		s.newest = max(s.newest, r.Seq)
	}
	if !r.Message() {
		return
	}
	h, err := nats.DecodeHeadersMsg(r.Header)
	if err != nil {
		return // a frame without a header that can be read is none
	}
	s.add(&copyOf{seq: r.Seq, at: r.At, subject: r.Subject, header: r.Header, frame: jetlog.Decode(h, r.Body), place: place})
}

// readStore reads the blocks of a plane's journal in the store of a server.
func readStore(store, account, plane string) (*stream, error) {
	s := &stream{plane: plane, copies: map[int][]*copyOf{}}
	dir := blockfile.Stream(store, account, jetlog.StreamName(plane))
	if _, err := os.Stat(dir); err == nil {
		s.exists = true
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s.partitions = storedPartitions(dir)
	files, err := blockfile.Files(filepath.Join(dir, "msgs"))
	if err != nil {
		return nil, err
	}
	return s, s.readBlocks(files, placeStore)
}

// storedPartitions returns how many partitions a stream says that its plane has, 0 if that cannot be read.
func storedPartitions(dir string) int {
	raw, err := os.ReadFile(filepath.Join(dir, "meta.inf"))
	if err != nil {
		return 0
	}
	var meta struct{ Metadata map[string]string }
	if json.Unmarshal(raw, &meta) != nil {
		return 0
	}
	n, err := jetlog.PartitionsIn(meta.Metadata)
	if err != nil {
		return 0
	}
	return n
}

// readBlocks adds the frames in block files.
func (s *stream) readBlocks(files []blockfile.File, place int) error {
	name := jetlog.StreamName(s.plane)
	for _, file := range files {
		b, err := readBlock(file)
		if err != nil {
			return err
		}
		gaps, err := blockfile.Read(name, file.Index, b, []string{jetlog.SubjectPrefix(s.plane)}, func(r blockfile.Record) error {
			s.record(r, place)
			return nil
		})
		if err != nil {
			return err
		}
		for _, gap := range gaps {
			if place == placeStore {
				s.gaps = append(s.gaps, fmt.Sprintf("%s, %s", file.Path, gap))
			}
			if r, ok := blockfile.Correct(name, file.Index, b[gap.From:gap.To]); ok {
				s.record(r, placeCorrected)
			}
		}
	}
	return nil
}

// readSalvaged adds what a start of the server copied aside.
func (s *stream) readSalvaged(dir string) error {
	files, err := salvage.Copies(dir, jetlog.StreamName(s.plane))
	if err != nil {
		return err
	}
	return s.readBlocks(files, placeSalvage)
}

// readOther adds what another store has: the directory of a server, whose account may have any name.
func (s *stream) readOther(store string) error {
	dirs, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", jetlog.StreamName(s.plane), "msgs"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		files, err := blockfile.Files(dir)
		if err != nil {
			return err
		}
		if err := s.readBlocks(files, placeOther); err != nil {
			return err
		}
	}
	return nil
}

// message adds a message of a backup.
func (s *stream) message(m archive.Message) {
	header := nats.Header(m.Header)
	s.add(&copyOf{seq: m.Seq, subject: m.Subject, header: onWire(header), frame: jetlog.Decode(header, m.Data), place: placeBackup})
}

// readBlock reads a block file.
func readBlock(file blockfile.File) ([]byte, error) { return os.ReadFile(file.Path) }
