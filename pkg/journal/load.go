package journal

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/snapshot"
)

// load builds a core from the newest snapshot that is valid and the log behind it, and takes the partition over (R6).
// It retries until ctx ends, except when the log cannot be read as this plane's, and when the lease is not held, which
// is ErrNotHeld. awaiting has the request ids that the loop generated for commands whose outcome is unknown; those that
// are in the log are put into core.recovered. If until is not nil and the log ends there, this process is still its
// writer: load writes nothing.
func (p *Partition[S]) load(ctx context.Context, awaiting map[string]struct{}, until *framelog.End) (*core[S], error) {
	began := time.Now()
	from, err := p.storedSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	var shortSince time.Time
	var skip *event.ErasedSet
	for {
		// Begin at the newest snapshot that is left in from.
		c, err := p.loadBehind(ctx, from, skip, awaiting, until, &shortSince)
		if err == nil && len(from) == 0 && skip == nil && c.erased.Len() > 0 {
			skip = c.erased // they are known only at the end of the log, so it is read once more
			c.release()
			continue
		}
		if len(from) > 0 && unusable(err) {
			level := zap.WarnLevel
			if errors.Is(err, errNotAnnounced) { // its writer ended before it was announced
				level = zap.InfoLevel
			}
			p.cfg.Logger.Log(level, "journal: a snapshot cannot be used; the one before it is tried, or the log alone",
				zap.Uint64("snapshot", from[0].Snapshot), zap.Error(err))
			from = from[1:]
			continue
		}

		if err == nil && len(from) > 0 && p.cfg.CheckRestored != nil {
			err = p.checkRestored(ctx, c)
		}
		if err != nil {
			return nil, err
		}

		// Show the state to the plane, then to followers.
		if err := snapshot.Guarded(func() { p.cfg.OnLoad(c.state) }); err != nil {
			p.cfg.Logger.Error("journal: owners that left memory cannot be read from their file; all stay in memory",
				zap.String("partition", c.name), zap.Error(err))
			p.cfg.Eviction = snapshot.NoEviction()
			c.release()
			continue
		}
		p.cfg.Feed.Begin(c.end.Seq)
		p.metrics.Loaded(time.Since(began))
		return c, nil
	}
}

// loadBehind builds a core from the snapshot from[0], or an empty one if from is empty, and the log behind it, and
// takes the partition over as load does. Events of owners in skip are not applied; nil applies all. It sets
// *shortSince, if that is zero, to the time at which it first found the log to end before its witness. Its errors are
// ErrNotHeld, that of ctx, ErrNoObject, errNotAnnounced or a *replayError. All others of the log are retried.
func (p *Partition[S]) loadBehind(ctx context.Context, from []*snapshot.Snapshot, skip *event.ErasedSet,
	awaiting map[string]struct{}, until *framelog.End, shortSince *time.Time,
) (loaded *core[S], err error) {
	// Restore the snapshot.
	c, err := p.coreFrom(ctx, from)
	if err != nil {
		return nil, err
	}
	c.skip = skip
	defer func() {
		if err != nil {
			c.release()
		}
	}()

	next := c.end.Seq + 1
	pacer := framelog.NewPacer()
	witnessed, err := framelog.Compare(c.name, p.cfg.Witness)
	if err == nil && len(from) > 0 {
		err = witnessed.ReadFrom(c.end)
	}
	if err != nil {
		return nil, &replayError{Cause: err}
	}
	frames := 0
	for {
		// Replay the log from where the last attempt ended.
		err := p.cfg.Log.Scan(ctx, next, func(seq uint64, f framelog.Frame) error {
			if seq < next { // it was replayed before
				return nil
			}
			if err := c.replay(p.cfg.Registry, seq, f, awaiting); err != nil {
				return err
			}
			next, frames = seq+1, frames+1
			if err := witnessed.Read(c.end); err != nil {
				return &replayError{Cause: err}
			}
			return nil
		})

		// A log that ends before its witness may be an old view of it, so it is damaged only after LossPatience.
		if err == nil {
			if err = witnessed.Missing(c.end); err != nil && shortSince.IsZero() {
				*shortSince = time.Now()
			}
			if err != nil && time.Since(*shortSince) >= p.cfg.LossPatience {
				err = &replayError{Cause: err}
			}
		}

		// Take over, unless this process is still the writer.
		if !p.held() {
			return nil, ErrNotHeld
		}
		if err == nil && len(from) > 0 && !c.track.Valid {
			return nil, errNotAnnounced
		}
		if err == nil && (until == nil || c.end != *until) {
			err = p.takeOver(ctx, c)
		}

		var damaged *replayError
		var broken *framelog.Broken // in an archive
		switch {
		case err == nil:
			p.reportLoaded(c, frames)
			return c, nil
		case ctx.Err() != nil:
			return nil, errors.Join(ctx.Err(), err)
		case errors.As(err, &damaged):
			return nil, err
		case errors.As(err, &broken):
			return nil, &replayError{Cause: err}
		}
		// Wrong sequence: another writer, or an earlier takeOver whose
		// acknowledgement was lost. The next scan reads its frame.
		p.cfg.Logger.Info("journal: loading continues", zap.Uint64("from", next), zap.Error(err))
		if pacer.Wait(ctx) != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// takeOver appends partition_opened with the next generation behind c.end, and applies it to c. If it returns an error,
// c is as it was, but the event may be in the log: the caller must read the log again from c.end.
func (p *Partition[S]) takeOver(ctx context.Context, c *core[S]) error {
	generation := c.generation + 1
	ev := &Event{
		WalSeq:    c.applied + 1,
		ID:        p.cfg.NewID("evt_"),
		Type:      TypePartitionOpened,
		Plane:     p.cfg.Plane,
		Payload:   event.Opened(generation),
		CreatedAt: micros(p.cfg.Now()),
	}
	body, err := event.AppendLine(nil, ev)
	if err != nil {
		return &replayError{Cause: err}
	}
	f := framelog.Frame{ID: p.cfg.NewID(""), Generation: generation, Body: body}
	content := framelog.NewContent(p.log.Salt(f.ID))
	content.Add(body)
	end, err := p.log.Append(ctx, c.end, f, content)
	if err != nil {
		return err
	}
	p.witness(end)
	c.frames.Add(ev.WalSeq, end.Seq)
	c.end = end
	return c.apply(ev)
}
