package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/meter"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/derived"
)

// interval is the least time between the beginnings of two passes.
const interval = time.Hour

// ScrubConfig says what is read.
type ScrubConfig struct {
	Store, Account, SalvageDir string
	// Archives is Place.Config of where the archives are; nil: there are none. Of those in a bucket only the catalogs
	// are read.
	Archives   func(plane string, partition int) archives.JournalConfig
	Planes     []string
	Partitions func(plane string) int
	Witness    func(plane string, partition int) framelog.Witness
	// Rate is the number of bytes that are read in a second; 0: nothing is.
	Rate int64
	// Report is called for each partition when all journals of its plane were read, with the first damage or nil.
	Report func(partition string, damage error)
	// Streams returns the streams that are not journals; for these, Report is called with their names. nil: none are
	// read.
	Streams func(store, account string) ([]derived.Stream, error)
	Metrics prometheus.Registerer
	Logger  *zap.Logger
	// Wait waits, or returns early when ctx ends; default: with a timer.
	Wait func(ctx context.Context, d time.Duration)
}

// Scrubber reads the journals in the background. Use New.
type Scrubber struct {
	cfg    ScrubConfig
	cancel context.CancelFunc
	done   chan struct{}

	bytes, frames prometheus.Counter
	passed        prometheus.Gauge
	damaged       prometheus.Gauge
	streams       prometheus.Gauge
	copied        map[string]bool // damaged blocks that were copied aside, by path
}

// NewScrubber returns a Scrubber that is not started.
func NewScrubber(cfg ScrubConfig) *Scrubber {
	if cfg.Archives == nil {
		cfg.Archives = archives.Place{}.Config
	}
	if cfg.Wait == nil {
		cfg.Wait = wait
	}
	return &Scrubber{
		cfg: cfg, copied: map[string]bool{},
		bytes: meter.Counter(cfg.Metrics, "quartet_scrub_bytes_total",
			"Bytes of journals and other streams that were read again from the disk.").WithLabelValues(),
		frames: meter.Counter(cfg.Metrics, "quartet_scrub_frames_total",
			"Frames of journals that were read again and verified.").WithLabelValues(),
		passed: meter.Gauge(cfg.Metrics, "quartet_scrub_last_pass_timestamp_seconds",
			"When all journals had been read last, as Unix time; 0 before the first time.").WithLabelValues(),
		damaged: meter.Gauge(cfg.Metrics, "quartet_scrub_damaged_partitions",
			"Partitions whose journal the last pass found damaged.").WithLabelValues(),
		streams: meter.Gauge(cfg.Metrics, "quartet_scrub_damaged_streams",
			"Streams other than journals that the last pass found damaged: EVENTS, the output of commands, or "+
				"snapshots.").WithLabelValues(),
	}
}

// Name returns the module's name.
func (s *Scrubber) Name() string { return "scrub" }

// Ready returns nil.
func (s *Scrubber) Ready() error { return nil }

// Start begins to read.
func (s *Scrubber) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go func() {
		defer close(s.done)
		for s.cfg.Rate > 0 && ctx.Err() == nil {
			began := time.Now()
			if err := s.Pass(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("the journals could not be read again", zap.Error(err))
			}
			s.cfg.Wait(ctx, interval-time.Since(began))
		}
	}()
	return nil
}

// Stop ends reading.
func (s *Scrubber) Stop(context.Context) error {
	if s.cancel != nil {
		s.cancel()
		<-s.done
	}
	return nil
}

// wait implements Config.Wait.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Pass reads all journals and then the other streams once, and reports what is wrong with them.
func (s *Scrubber) Pass(ctx context.Context) error {
	damaged := 0
	for _, plane := range s.cfg.Planes {
		p := &pass{Scrubber: s, plane: plane}
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("the journal of %s: %w", plane, err)
		}
		damaged += p.report()
	}
	s.damaged.Set(float64(damaged))
	damaged = 0
	var streams []derived.Stream
	if s.cfg.Streams != nil {
		var err error
		if streams, err = s.cfg.Streams(s.cfg.Store, s.cfg.Account); err != nil {
			return err
		}
	}
	for _, of := range streams {
		intact, err := s.stream(ctx, of)
		if err != nil {
			return err
		}
		if !intact {
			damaged++
		}
	}
	s.streams.Set(float64(damaged))
	s.passed.SetToCurrentTime()
	return nil
}

// pass reads the journal of one plane.
type pass struct {
	*Scrubber
	plane    string
	journals []*progress // by partition
	broken   error       // a part of a block that cannot be read
	read     []read      // what was read of the log, in order
}

// read is a segment that was read, and its last block then, which may have been written since.
type read struct {
	datadir.Segment
	last int
}

// progress is how far the journal of a partition was read, and the first damage to it.
type progress struct {
	*archives.Journal
	damage error
}

// run reads the archives and then the blocks. What was witnessed before that must be in them.
func (p *pass) run(ctx context.Context) error {
	for i := range p.cfg.Partitions(p.plane) {
		p.journals = append(p.journals, p.begin(i))
	}
	for _, j := range p.journals {
		if err := j.Archived(ctx); err != nil {
			return err
		}
	}
	segments, err := datadir.Segments(p.cfg.Store, p.cfg.Account, p.plane)
	if err != nil {
		return err
	}
	for _, j := range p.journals { // that took long: segments that the log does not have any more are archived now
		if err := j.Archived(ctx); err != nil {
			return err
		}
	}
	for _, seg := range segments {
		if p.archived(seg) {
			continue
		}
		files, err := blockfile.Files(filepath.Join(seg.Dir, "msgs"))
		if err != nil {
			return err
		}
		for i, file := range files {
			if err := p.block(ctx, seg, file, i == len(files)-1); err != nil {
				return err
			}
		}
		if n := len(files); n > 0 {
			p.read = append(p.read, read{seg, files[n-1].Index})
		}
	}
	for _, j := range p.journals {
		if err := j.Finish(ctx); err != nil {
			return err
		}
	}
	return nil
}

// begin begins to read the journal of a partition.
func (p *pass) begin(partition int) *progress {
	j := &progress{}
	cfg := p.cfg.Archives(p.plane, partition)
	cfg.Pace, cfg.Trust = p.pace, !cfg.Files
	cfg.Damage = func(err error) {
		if j.damage == nil {
			j.damage = err
		}
	}
	j.Journal = archives.BeginJournal(cfg, p.cfg.Witness(p.plane, partition))
	return j
}

// archived reports whether all frames in the stream of a segment are in the archive, so that it only waits to be
// removed.
func (p *pass) archived(seg datadir.Segment) bool {
	if seg.Shared {
		return len(p.journals) > 0 &&
			!slices.ContainsFunc(p.journals, func(j *progress) bool { return !j.Holds(seg.Segment) })
	}
	return seg.Partition < len(p.journals) && p.journals[seg.Partition].Holds(seg.Segment)
}

// block reads a block, at the rate.
func (p *pass) block(ctx context.Context, seg datadir.Segment, file blockfile.File, last bool) error {
	stream := seg.Stream()
	b, err := os.ReadFile(file.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // if frames are missing now, the next one does not continue the journal
	}
	if err != nil {
		return err
	}
	gaps, err := blockfile.Read(stream, file.Index, b, []string{jetlog.SubjectPrefix(p.plane)},
		func(r blockfile.Record) error {
			return p.frame(ctx, seg, r)
		})
	if err != nil {
		return err
	}
	if len(gaps) > 0 && !seg.Shared && seg.Partition < len(p.journals) {
		if err := p.journals[seg.Partition].Archived(ctx); err != nil {
			return err
		}
	}
	if p.archived(seg) {
		gaps = nil // the server may be removing the stream
	}
	for _, gap := range gaps {
		if last && gap.Tail() {
			continue // it is being written
		}
		p.broken = fmt.Errorf("%s, %s", file.Path, gap)
		if !p.copied[file.Path] {
			copied, err := salvage.CopyAside(p.cfg.SalvageDir, stream, file.Index, b, time.Now())
			if err != nil {
				return err
			}
			p.copied[file.Path] = true
			p.cfg.Logger.Error("a block of a journal is damaged; it is copied aside", zap.String("block", file.Path),
				zap.String("copy", copied), zap.Stringer("gap", gap))
		}
	}
	return p.pace(ctx, len(b))
}

// pace counts bytes that were read, and waits as long as they may take.
func (s *Scrubber) pace(ctx context.Context, n int) error {
	s.bytes.Add(float64(n))
	s.cfg.Wait(ctx, time.Duration(float64(n)/float64(max(s.cfg.Rate, 1))*float64(time.Second)))
	return ctx.Err()
}

// frame verifies a frame of a segment.
func (p *pass) frame(ctx context.Context, seg datadir.Segment, r blockfile.Record) error {
	of, found := jetlog.ParseSubject(r.Subject)
	if !r.Message() || !found || of.Partition >= len(p.journals) {
		return nil
	}
	j := p.journals[of.Partition]
	if err := p.closed(ctx, seg, of.Partition); err != nil {
		return err
	}
	p.frames.Inc()
	return j.Frame(ctx, r.Seq, decode(r))
}

func decode(r blockfile.Record) framelog.Frame {
	h, err := nats.DecodeHeadersMsg(r.Header)
	if err != nil {
		h = nats.Header{} // a frame without a header continues no other
	}
	return jetlog.Decode(h, r.Body)
}

// closed is called for each frame of seg. For the first one it reads what was written to the segment before seg since
// this pass read that segment: a stream is created before the segment before it is closed, so the pass may have read
// that one too early. Once seg has a frame, nothing more is written to the segment before.
func (p *pass) closed(ctx context.Context, seg datadir.Segment, partition int) error {
	j := p.journals[partition]
	if j.End.Segment >= seg.Segment {
		return nil
	}
	i := slices.IndexFunc(p.read, func(r read) bool {
		return r.Segment.Segment == j.End.Segment && (r.Shared || r.Partition == partition)
	})
	if i < 0 {
		return nil
	}
	before := p.read[i]
	p.read[i].last = math.MaxInt // it is read again once
	files, err := blockfile.Files(filepath.Join(before.Dir, "msgs"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if file.Index < before.last {
			continue
		}
		b, err := os.ReadFile(file.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // if frames are missing now, the next one does not continue the journal
		}
		if err != nil {
			return err
		}
		_, err = blockfile.Read(before.Stream(), file.Index, b, []string{jetlog.SubjectPrefix(p.plane)},
			func(r blockfile.Record) error {
				of, found := jetlog.ParseSubject(r.Subject)
				if !r.Message() || !found || of.Partition != partition || r.Seq <= j.End.Seq {
					return nil
				}
				p.frames.Inc()
				return j.Frame(ctx, r.Seq, decode(r))
			})
		if err != nil {
			return err
		}
		p.bytes.Add(float64(len(b)))
	}
	return nil
}

// report reports the partitions of the plane, and returns how many are damaged.
func (p *pass) report() (damaged int) {
	for _, j := range p.journals {
		p.frames.Add(float64(j.ArchivedFrames))
		if j.damage != nil {
			damaged++
			p.cfg.Logger.Error("a journal is damaged on the disk", zap.Error(j.damage),
				zap.NamedError("block", p.broken))
		}
		p.cfg.Report(j.Partition, j.damage)
	}
	return damaged
}
