package repair

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"quartet/pkg/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/derived"
)

// Config says what is repaired, and with what.
type Config struct {
	DataDir, WitnessDir, SalvageDir, Account string
	Planes                                   []string
	// Archives are where the archives are; zero: below DataDir.
	Archives archives.Place
	// Stores are directories of NATS servers, or data directories, with other copies of the journals. Optional.
	Stores []string
	// BackupFile is a backup that is authenticated with Keys; "": there is none.
	BackupFile string
	Keys       archive.Keys
	// AcceptLoss names the partitions, such as work/0, that go on without what cannot be found.
	AcceptLoss []string
	// Apply writes the repaired journals; without it Run only says what it would do.
	Apply bool
	// Lock locks DataDir, which no server may use.
	Lock func(dir string) (unlock func() error, err error)
	// Sync syncs the file system of a directory.
	Sync  func(dir string) error
	Now   time.Time
	NewID func(prefix string) string
}

// Result is what Run found and did.
type Result struct {
	Journals []Journal
	Derived  []derived.Report // the other streams that are damaged
	// Replaced is the directory with the damaged streams that were exchanged; "" if none was.
	Replaced string
}

// Status says how a journal is.
type Status string

// The statuses.
const (
	Intact     Status = "intact"
	Repairable Status = "repairable" // every frame has an intact copy
	Lost       Status = "lost"       // frames are missing of which there is no copy
	Accepted   Status = "accepted"   // the same, and the operator accepts it
)

// Journal is the journal of one partition.
type Journal struct {
	Partition string // such as work/3
	Status    Status
	Damage    []string // what is wrong
	// Copies are the numbers of frames that come from elsewhere than from the journal, by place.
	Copies map[string]int
	Loss   *Loss // for Lost and Accepted
	// Begins is where the new incarnation begins, for Accepted.
	Begins framelog.End
	// Archive is the journal's archive if that is damaged; nil: it is intact.
	Archive *Archive
}

// examined is a Journal with what it is made of.
type examined struct {
	Journal
	of        partition
	chain     chain
	witnessed framelog.End
	begin     *copyOf // the frame of a new incarnation
	archived  *archiveOf
}

// Run examines the journals of an embedded NATS server, which must not run, finds intact copies of damaged frames, and
// with Apply exchanges the streams of damaged journals for repaired ones.
func Run(ctx context.Context, cfg Config) (result Result, err error) {
	store := filepath.Join(cfg.DataDir, "nats")
	if _, err := os.Stat(cfg.DataDir); err != nil {
		return result, fmt.Errorf("data-dir %s has no journals: %w", cfg.DataDir, err)
	}
	unlock, err := cfg.Lock(cfg.DataDir)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if cfg.Archives == (archives.Place{}) {
		cfg.Archives.Dir = datadir.Archive(cfg.DataDir)
	}
	r := &run{Config: cfg, store: store, streams: map[string]*stream{}}
	if err := r.examine(ctx); err != nil {
		return result, err
	}
	if err := r.checkAccepted(); err != nil {
		return result, err
	}
	if slices.ContainsFunc(r.journals, func(j *examined) bool {
		return j.Status != Intact ||
			j.archived.Status != Intact
	}) {
		if err := r.search(ctx); err != nil {
			return result, err
		}
	}
	if result.Derived, err = r.examineDerived(); err != nil {
		return result, err
	}
	if cfg.Apply {
		archives, err := r.mendArchives(ctx)
		if err != nil {
			return result, err
		}
		if result.Replaced, err = r.apply(ctx); err != nil {
			return result, err
		}
		result.Replaced = cmp.Or(result.Replaced, archives)
		renewed, err := r.renew(result.Derived)
		if err != nil {
			return result, err
		}
		result.Replaced = cmp.Or(result.Replaced, renewed)
	}
	for _, j := range r.journals {
		if j.archived.Status != Intact {
			j.Archive = &j.archived.Archive
		}
		result.Journals = append(result.Journals, j.Journal)
	}
	return result, nil
}

// run is one call of Run.
type run struct {
	Config
	store    string
	streams  map[string]*stream // by plane
	journals []*examined
}

// stamp names what this call writes.
func (r *run) stamp() string { return r.Now.UTC().Format("20060102T150405.000") }

// replaced returns the directory for what is exchanged.
func (r *run) replaced() string { return filepath.Join(r.DataDir, "replaced", r.stamp()) }

// examine reads the journals as they are.
func (r *run) examine(ctx context.Context) error {
	for _, plane := range r.Planes {
		s, err := readStore(r.store, r.Account, plane)
		if err != nil {
			return fmt.Errorf("the journal of %s: %w", plane, err)
		}
		witnessed, err := witness.Partitions(r.WitnessDir, plane)
		if err != nil {
			return err
		}
		archives, err := r.Archives.Partitions(ctx, plane)
		if err != nil {
			return err
		}
		s.partitions = max(s.partitions, witnessed, archives)
		r.streams[plane] = s
		for i := range s.partitions {
			j := &examined{of: partition{plane, i}}
			j.Partition = j.of.String()
			if j.witnessed, err = witness.At(r.WitnessDir, plane, i).Last(); err != nil {
				return err
			}
			if j.archived, err = r.examineArchive(ctx, j.of, s.stored(i, 0)); err != nil {
				return fmt.Errorf("the archive of %s: %w", j.Partition, err)
			}
			stored := s.stored(i, j.archived.end().Seq)
			j.chain = assemble(j.Partition, j.archived.end(), stored, j.witnessed)
			if j.Status = Intact; !j.chain.intact(len(stored)) {
				j.Status = Lost
				j.Damage = j.describe(s)
			}
			r.journals = append(r.journals, j)
		}
	}
	return nil
}

// intact reports whether a journal is in order as it is: all its frames continue each other, and it has the witnessed
// one.
func (c *chain) intact(copies int) bool {
	return c.whole && len(c.kept) == copies
}

// describe says what is wrong with a journal.
func (j *examined) describe(s *stream) (all []string) {
	end := j.chain.end
	switch {
	case len(s.has(j.of.number)) == 0:
		all = append(all, "the stream is gone")
	case !j.chain.whole && j.witnessed.Seq > end.Seq:
		all = append(all, fmt.Sprintf("behind frame %d, wal_seq %d, frames are missing up to frame %d, wal_seq %d, "+
			"which was written", end.Seq, end.WalSeq, j.witnessed.Seq, j.witnessed.WalSeq))
	case !j.chain.whole:
		all = append(all, fmt.Sprintf("it does not have frame %d, wal_seq %d, as it was written there", j.witnessed.Seq,
			j.witnessed.WalSeq))
	}
	for _, f := range j.chain.broken {
		all = append(all, fmt.Sprintf("the content of frame %d was changed", f.seq))
	}
	switch n := len(j.chain.left); n {
	case 0:
	case 1:
		all = append(all, fmt.Sprintf("frame %d does not continue it", j.chain.left[0].seq))
	default:
		all = append(all, fmt.Sprintf("frames %d to %d do not continue it", j.chain.left[0].seq, j.chain.left[n-1].seq))
	}
	for _, seg := range s.has(j.of.number) {
		all = append(all, s.gaps[seg.Place]...)
	}
	return all
}

// checkAccepted returns an error if AcceptLoss names something that is not damaged.
func (r *run) checkAccepted() error {
	for _, name := range r.AcceptLoss {
		i := slices.IndexFunc(r.journals, func(j *examined) bool { return j.Partition == name })
		switch {
		case i < 0:
			return fmt.Errorf("there is no partition %q; --accept-loss takes one as `quartet repair` prints it, such "+
				"as work/0", name)
		case r.journals[i].Status == Intact && r.journals[i].archived.Status != Intact:
			return fmt.Errorf("only the archive of %s is damaged; the journal goes on without what is lost of it, "+
				"and nothing has to be given up", name)
		case r.journals[i].Status == Intact:
			return fmt.Errorf("the journal of %s is not damaged; nothing of it can be given up", name)
		}
	}
	return nil
}

// search looks, in all places of the Config, for copies of the frames that damaged journals and archives lack. Then
// it sets the status of each of these by what it found. It changes nothing that is stored.
func (r *run) search(ctx context.Context) error {
	damaged := map[string]bool{}
	for _, j := range r.journals {
		damaged[j.of.plane] = damaged[j.of.plane] || j.Status != Intact || j.archived.Status != Intact
	}
	for plane, s := range r.streams {
		if !damaged[plane] {
			continue
		}
		s.wanted = map[int][]span{}
		for _, j := range r.journals {
			if j.of.plane == plane {
				s.wanted[j.of.number] = j.wanted()
				j.readArchive(ctx, s)
			}
		}
		if err := s.readSalvaged(r.SalvageDir); err != nil {
			return err
		}
		for _, store := range r.Stores {
			for _, dir := range []string{store, filepath.Join(store, "nats")} {
				if err := s.readOther(dir); err != nil {
					return err
				}
			}
			if err := s.readArchives(ctx, datadir.Archive(store)); err != nil {
				return err
			}
		}
	}
	if err := r.searchBackup(damaged); err != nil {
		return err
	}
	k := newKnown()
	for _, s := range r.streams {
		k.readPositions(s)
	}
	if err := k.readEvents(r.store, r.Account); err != nil {
		return err
	}
	for _, j := range r.journals {
		s := r.streams[j.of.plane]
		k.saw(j.of, j.witnessed)
		k.saw(j.of, j.archived.end())
		k.seq[j.of] = max(k.seq[j.of], s.newest[j.of.number])
	}
	for _, j := range r.journals {
		if j.archived.Status != Intact {
			j.archived.mend(r.streams[j.of.plane].copies[j.of.number])
		}
		if j.Status != Intact {
			if err := r.decide(j, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// searchBackup reads the backup.
func (r *run) searchBackup(damaged map[string]bool) error {
	if r.BackupFile == "" {
		return nil
	}
	file, err := os.Open(r.BackupFile)
	if err != nil {
		return err
	}
	defer file.Close()
	opened, err := archive.Open(file, r.Keys)
	if err != nil {
		return err
	}
	m, _, err := opened.Read(archive.Visitor{Message: func(m archive.Message) error {
		if of, ok := jetlog.ParseStream(m.Stream); ok && damaged[of.Plane] {
			r.streams[of.Plane].message(m)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	for plane, n := range m.Partitions {
		if s := r.streams[plane]; s != nil {
			s.partitions = max(s.partitions, n)
		}
	}
	return nil
}

// margin is how far above everything that is known a new incarnation begins: what only clients know is within it.
const margin = 1000

// decide sets the status of a damaged journal from the copies of all places. If its loss is accepted, decide also
// makes the frame with which it goes on.
func (r *run) decide(j *examined, k *known) error {
	s := r.streams[j.of.plane]
	j.chain = assemble(j.Partition, j.archived.end(), s.behind(j.of.number, j.archived.end().Seq), j.witnessed)
	j.Copies = map[string]int{}
	for _, f := range j.chain.kept {
		if f.place != placeStore {
			j.Copies[placeNames[f.place]]++
		}
	}
	if j.chain.whole && len(j.chain.left) == 0 {
		j.Status = Repairable
		return nil
	}
	j.Status = Lost
	last := lastKnown(j.of, s.partitions, j.chain, k, j.witnessed)
	j.Loss = lossOf(j.of, s.partitions, j.chain, k, last)
	if !slices.Contains(r.AcceptLoss, j.Partition) {
		return nil
	}
	j.Status = Accepted
	return r.beginIncarnation(j, s.goesOn(j), k.newest(j.of.plane, s.partitions)+margin, last+margin+1)
}

// goesOn returns the segment in which a journal goes on behind what is kept of it: one of its own, behind all that
// anybody knows. Within a stream a server would keep account of each of the sequence numbers that are left out.
func (s *stream) goesOn(j *examined) jetlog.Place {
	n := max(j.chain.end.Segment, j.witnessed.Segment)
	for _, seg := range s.has(j.of.number) {
		n = max(n, seg.Segment)
	}
	for _, f := range s.copies[j.of.number] {
		n = max(n, f.frame.Link.Segment)
	}
	return jetlog.Place{Plane: j.of.plane, Partition: j.of.number, Segment: n + 1}
}

// beginIncarnation makes the frame with which a journal goes on.
func (r *run) beginIncarnation(j *examined, of jetlog.Place, seq, first uint64) error {
	generation, number := uint64(0), max(j.chain.end.Incarnation, j.witnessed.Incarnation, 1)
	for _, f := range slices.Concat(j.chain.kept, j.chain.left) {
		generation, number = max(generation, f.frame.Generation), max(number, f.frame.Link.Incarnation)
	}
	var salt framelog.Salt
	_, _ = rand.Read(salt[:]) // it never fails
	f, err := framelog.Beginning{
		Plane: j.of.plane, Partition: j.of.number, Behind: j.chain.end, Segment: of.Segment, Number: number + 1,
		First: first, Generation: generation + 1, At: r.Now,
		Cause: fmt.Sprintf("the loss of wal_seq %d to %d was accepted", j.Loss.First, j.Loss.Last),
	}.Frame(r.NewID, salt)
	if err != nil {
		return err
	}
	header := jetlog.Header(of.Stream(), 0, f)
	j.begin = &copyOf{seq: seq, at: r.Now.UnixNano(), subject: of.Subject(), header: onWire(header), frame: f}
	end, intact, err := j.chain.end.Next(j.Partition, seq, f)
	if err != nil || !intact {
		return fmt.Errorf("the journal of %s cannot go on behind frame %d: %w", j.Partition, j.chain.end.Seq, err)
	}
	j.Begins = end
	return nil
}

// exists reports whether there is something at a path.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
