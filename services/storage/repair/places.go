package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats.go"

	"quartet/pkg/archive"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/datadir"
)

// The places where copies of frames are, in the order in which they are preferred.
const (
	placeStore     = iota // the blocks of the damaged store
	placeArchive          // archived segments of the data directory
	placeSalvage          // copies of its blocks from before a server cut them
	placeCorrected        // records in which one changed bit was found
	placeOther            // the store of another server, or an older copy
	placeBackup
)

// placeNames name the places for people.
var placeNames = [...]string{
	"the journal", "the archive", "salvaged blocks", "corrected bits", "another store",
	"the backup",
}

// stream has the copies of the frames of one plane's journal.
type stream struct {
	plane      string
	partitions int                       // as far as the streams, their frames or the backup tell
	segments   []datadir.Segment         // that the store has
	shared     bool                      // the partitions began in one stream
	copies     map[int][]*copyOf         // by partition
	gaps       map[jetlog.Place][]string // what cannot be read in the blocks of the store
	newest     map[int]uint64            // highest sequence number in any of the places, by partition
	wanted     map[int][]span            // the frames of which copies are needed, by partition; no entry: all
}

// add adds a copy if it is wanted. It leaves out those whose subject is not that of a partition of the plane.
func (s *stream) add(c *copyOf) {
	of, found := jetlog.ParseSubject(c.subject)
	if !found || of.Plane != s.plane {
		return
	}
	s.shared = s.shared || of.Shared
	s.partitions = max(s.partitions, of.Partition+1)
	s.newest[of.Partition] = max(s.newest[of.Partition], c.seq)
	if s.wants(of.Partition, c.seq, c.seq) {
		s.copies[of.Partition] = append(s.copies[of.Partition], c)
	}
}

// has returns the segments of a partition that the store has, in order.
func (s *stream) has(partition int) (all []datadir.Segment) {
	for _, seg := range s.segments {
		if seg.Shared || seg.Partition == partition {
			all = append(all, seg)
		}
	}
	return all
}

// behind returns the copies of the frames of a partition that are behind a sequence number.
func (s *stream) behind(partition int, seq uint64) (all []*copyOf) {
	for _, f := range s.copies[partition] {
		if f.seq > seq {
			all = append(all, f)
		}
	}
	return all
}

// wants reports whether copies of any of the frames first to last, both included, of a partition may be needed.
func (s *stream) wants(partition int, first, last uint64) bool {
	wanted, known := s.wanted[partition]
	return !known || slices.ContainsFunc(wanted, func(w span) bool { return first <= w.last && last >= w.first })
}

// stored returns the frames of a partition that are in the store itself, behind a sequence number.
func (s *stream) stored(partition int, seq uint64) (all []*copyOf) {
	for _, f := range s.copies[partition] {
		if f.place == placeStore && f.seq > seq {
			all = append(all, f)
		}
	}
	return all
}

// record adds the message of a record in the stream of a segment.
func (s *stream) record(of jetlog.Place, r blockfile.Record, place int) {
	if r.Erased && of.Shared {
		for i := range s.partitions {
			s.newest[i] = max(s.newest[i], r.Seq)
		}
	} else if r.Erased {
		s.newest[of.Partition] = max(s.newest[of.Partition], r.Seq)
	}
	if !r.Message() {
		return
	}
	h, err := nats.DecodeHeadersMsg(r.Header)
	if err != nil {
		return // a frame without a header that can be read is none
	}
	s.add(&copyOf{
		seq: r.Seq, at: r.At, subject: r.Subject, header: r.Header, frame: jetlog.Decode(h, r.Body),
		place: place,
	})
}

// readStore reads the blocks of a plane's journal in the store of a server.
func readStore(store, account, plane string) (*stream, error) {
	s := &stream{plane: plane, copies: map[int][]*copyOf{}, gaps: map[jetlog.Place][]string{}, newest: map[int]uint64{}}
	var err error
	if s.segments, err = datadir.Segments(store, account, plane); err != nil {
		return nil, err
	}
	for _, seg := range s.segments {
		s.partitions = max(s.partitions, seg.Partitions, seg.Partition+1)
		s.shared = s.shared || seg.Shared
	}
	for _, seg := range s.segments {
		files, err := blockfile.Files(filepath.Join(seg.Dir, "msgs"))
		if err == nil {
			err = s.readBlocks(seg.Place, files, placeStore)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// readBlocks adds the frames in block files of the stream of a segment.
func (s *stream) readBlocks(of jetlog.Place, files []blockfile.File, place int) error {
	name := of.Stream()
	for _, file := range files {
		b, err := readBlock(file)
		if err != nil {
			return err
		}
		gaps, err := blockfile.Read(name, file.Index, b, []string{jetlog.SubjectPrefix(s.plane)},
			func(r blockfile.Record) error {
				s.record(of, r, place)
				return nil
			})
		if err != nil {
			return err
		}
		for _, gap := range gaps {
			if place == placeStore {
				s.gaps[of] = append(s.gaps[of], fmt.Sprintf("%s, %s", file.Path, gap))
			}
			if r, ok := blockfile.Correct(name, file.Index, b[gap.From:gap.To]); ok {
				s.record(of, r, placeCorrected)
			}
		}
	}
	return nil
}

// readSalvaged adds what a start of the server copied aside.
func (s *stream) readSalvaged(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		of, ok := jetlog.ParseStream(e.Name())
		if !ok || of.Plane != s.plane {
			continue
		}
		files, err := salvage.Copies(dir, e.Name())
		if err == nil {
			err = s.readBlocks(of, files, placeSalvage)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readOther adds what another store has: the directory of a server, whose account may have any name.
func (s *stream) readOther(store string) error {
	accounts, err := os.ReadDir(filepath.Join(store, "jetstream"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, account := range accounts {
		segments, err := datadir.Segments(store, account.Name(), s.plane)
		if err != nil {
			return err
		}
		for _, seg := range segments {
			files, err := blockfile.Files(filepath.Join(seg.Dir, "msgs"))
			if err == nil {
				err = s.readBlocks(seg.Place, files, placeOther)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// message adds a message of a backup.
func (s *stream) message(m archive.Message) {
	header := nats.Header(m.Header)
	s.add(&copyOf{
		seq: m.Seq, subject: m.Subject, header: onWire(header), frame: jetlog.Decode(header, m.Data),
		place: placeBackup,
	})
}

// readBlock reads a block file.
func readBlock(file blockfile.File) ([]byte, error) { return os.ReadFile(file.Path) }
