package verify

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/natsd/blockfile"
	"quartet/services/storage/derived"
)

// stream reads a stream that is not a journal, at the rate, and reports what is wrong with it.
func (s *Scrubber) stream(ctx context.Context, of derived.Stream) (intact bool, err error) {
	files, err := blockfile.Files(blockfile.Messages(s.cfg.Store, s.cfg.Account, of.Name))
	if err != nil {
		return false, err
	}
	r := derived.NewReader(of)
	for i, file := range files {
		if err := s.streamBlock(ctx, &r, file, i == len(files)-1); err != nil {
			return false, err
		}
	}
	report := r.Report()
	damage := report.Err()
	if damage != nil {
		s.cfg.Logger.Error("a stream that is not a journal is damaged on the disk", zap.Error(damage),
			zap.String("remedy", report.Remedy()))
	}
	s.cfg.Report(of.Name, damage)
	return damage == nil, nil
}

// rereadAfter is how long after a block that seems to be damaged it is read again: unlike those of journals, the blocks
// of these streams are rewritten by the server, when messages were removed.
const rereadAfter = time.Second

// streamBlock reads a block, and once more if it seems to be damaged. One that was removed since the blocks were
// listed is passed over.
func (s *Scrubber) streamBlock(ctx context.Context, r *derived.Reader, file blockfile.File, newest bool) error {
	for first := true; ; first = false {
		b, err := os.ReadFile(file.Path)
		if errors.Is(err, fs.ErrNotExist) {
			r.Skip()
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.pace(ctx, len(b)); err != nil {
			return err
		}
		before := *r
		damaged, err := r.Block(file, b, newest)
		if err != nil || !damaged || !first {
			return err
		}
		*r = before
		s.cfg.Wait(ctx, rereadAfter)
	}
}
