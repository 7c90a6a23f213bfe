package journal

import (
	"cmp"
	"errors"
	"fmt"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
)

// core is everything that a partition knows from its log. A reload builds a new core beside the old one.
type core[S State] struct {
	state      S
	applied    uint64       // wal_seq of the last event in state
	generation uint64       // of the last partition_opened
	end        framelog.End // of the log, as far as it is known
	memory     *requests.Memory
	frames     framelog.Index
	positions  map[sourceKey]*position
	// recovered holds, after a reload, the requests without a caller's request id that turned out to be in the
	// log, by the request id that the loop generated for them.
	recovered map[string]requests.Entry
	ages      requests.Ages
	name      string // of the partition, in hashes
	// track is what snapshots need to know, nil if none are written.
	track *snapshot.Tracker
	// erased are the owners of owner_erased events. erasedThrough is the wal_seq of the last of these events whose
	// owner's lines are erased everywhere, and erasedRecorded the highest one that a snapshot records as such.
	erased                        *event.ErasedSet
	erasedThrough, erasedRecorded uint64
	// skip are owners whose events replay does not apply, as if they were erased already; nil: all are applied.
	skip *event.ErasedSet
	// evictor evicts owners of state; nil if all stay in memory.
	evictor *snapshot.Evictor
	// damaged reports a line that could not be read and was quarantined.
	damaged func(Damage)
}

// sourceKey identifies a source.
type sourceKey struct {
	plane     string
	partition int
}

// compare orders keys.
func (k sourceKey) compare(other sourceKey) int {
	return cmp.Or(cmp.Compare(k.plane, other.plane), cmp.Compare(k.partition, other.partition))
}

// position is how far another partition's journal was consumed.
type position struct {
	seq      uint64       // sequence number of the frame
	line     int          // number of its lines that were consumed, 0 for all
	consumed framelog.End // behind the last frame that was consumed completely
	// frames with events of the source that changed nothing here, since the position was written
	framesSinceWrite int
	// needsWrite is set when events after the written position led to nothing. The position must be written
	// before the next change of state: after a restart these events would otherwise be processed with a newer
	// state, in which they may lead to something.
	needsWrite bool
	// confirmed is the newest frame whose consumption completed, so that the state that it saw is durable.
	confirmed framelog.End
}

// newCore returns a core with an empty state.
func newCore[S State](cfg *Config[S]) *core[S] {
	state := cfg.New()
	var track *snapshot.Tracker
	if cfg.Snapshots != nil {
		track = snapshot.NewTracker(state)
	}
	erased := event.NewErasedSet()
	if erasable, ok := any(state).(Erasable); ok {
		erasable.UseErased(erased)
	}
	return &core[S]{
		state:     state,
		erased:    erased,
		evictor:   snapshot.NewEvictor(state, cfg.Eviction, cfg.Logger),
		track:     track,
		name:      framelog.PartitionName(cfg.Plane, cfg.Partition),
		memory:    cfg.Requests.New(),
		positions: make(map[sourceKey]*position),
		recovered: make(map[string]requests.Entry),
		ages:      cfg.ages,
		damaged: func(d Damage) {
			cfg.Logger.Error("journal: a damaged record; what it was about cannot be used",
				zap.String("plane", cfg.Plane), zap.Uint64("frame", d.Frame),
				zap.Uint64("wal_seq", d.WalSeq), zap.Error(d.Cause))
		},
	}
}

// position returns the position of a source, adding it if it is new.
func (c *core[S]) position(k sourceKey) *position {
	pos := c.positions[k]
	if pos == nil {
		pos = &position{}
		c.positions[k] = pos
	}
	return pos
}

// keepConfirmed copies from old, the core before a reload, the confirmed positions that no frame has, because the
// events before them led to nothing: a newer state must not process these events again (needsWrite). It does
// nothing if the generations say that another writer opened the partition in between, since old was outdated then: the
// reload itself opens it once at most.
func (c *core[S]) keepConfirmed(old *core[S]) {
	if c.generation != old.generation && c.generation != old.generation+1 {
		return
	}
	for key, was := range old.positions {
		pos := c.position(key)
		if was.confirmed.Seq > pos.seq || was.confirmed.Seq == pos.seq && pos.line > 0 {
			pos.consumed, pos.seq, pos.line, pos.needsWrite = was.confirmed, was.confirmed.Seq, 0, true
		}
		pos.confirmed = was.confirmed
	}
}

// IsDamage reports whether an error of Open says that the log cannot be read as this plane's.
func IsDamage(err error) bool {
	var e *replayError
	return errors.As(err, &e)
}

// replay applies the frame f, which has the sequence number seq, behind c.end, and moves c.end behind it. Requests in
// awaiting are put into c.recovered. It quarantines lines that cannot be read, if the state allows that. Every error is
// a *replayError; c must not be used after one.
func (c *core[S]) replay(reg *Registry, seq uint64, f framelog.Frame, awaiting map[string]struct{}) error {
	// Verify that the frame follows the one before it.
	previous := c.end
	end, intact, err := previous.Next(c.name, seq, f)
	if err != nil {
		return &replayError{Cause: err}
	}
	c.end = end

	// A frame without lines changes nothing, unless it had lines once.
	if f.Removed.Seq > 0 {
		return &replayError{Cause: &framelog.Broken{
			Partition: c.name, After: previous, Seq: seq,
			Cause: "old events were removed there (history-days), so the state needs a snapshot, and none can be " +
				"used; restore a backup",
		}}
	}
	if len(f.Body) == 0 {
		if !intact { // the frame had lines when it was written
			return &replayError{Cause: framelog.Altered(c.name, previous, seq)}
		}
		return nil
	}

	c.track.Wrote(len(f.Body))
	if f.Link.Incarnation > max(previous.Incarnation, 1) {
		c.applied = f.Link.First - 1 // a new incarnation leaves out what may have been in the former one
	}
	c.frames.Add(c.applied+1, seq)

	// Apply the lines. They are numbered without gaps.
	for _, line := range framelog.SplitLines(f.Body) {
		raw, err := ParseLine(line)
		if err == nil && raw.WalSeq != c.applied+1 {
			return &replayError{Cause: fmt.Errorf("frame %d: wal_seq %d follows %d", seq, raw.WalSeq,
				c.applied)}
		}
		if err == nil && c.skip.Has(raw.Namespace, raw.AgentID) {
			c.applied = raw.WalSeq
			continue
		}
		var ev *Event
		if err == nil {
			ev, err = raw.Decode(reg)
		}
		if err == nil && !intact { // any line of the frame may be the one that was changed
			err = framelog.Altered(c.name, previous, seq)
		}
		if err != nil {
			if err := c.quarantine(Damage{Frame: seq, WalSeq: c.applied + 1, Line: line, Cause: err}); err != nil {
				return &replayError{Cause: err}
			}
			continue
		}
		if err := c.apply(ev); err != nil {
			return &replayError{Cause: fmt.Errorf("frame %d: apply %s, wal_seq %d: %w", seq, ev.Type, ev.WalSeq,
				err)}
		}
		c.evictor.Replayed()
		c.restoreRequest(ev, awaiting)
	}
	return nil
}

// apply applies one event, at execution and at replay alike. A panic of State.Apply becomes an error, so that
// it affects this partition only and not the process.
func (c *core[S]) apply(ev *Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = snapshot.PanicError(r)
		}
	}()
	if Internal(ev.Type) {
		err = c.applyInternal(ev)
	} else {
		c.track.Before(ev)
		err = c.state.Apply(ev)
	}
	if err == nil {
		c.applied = ev.WalSeq
		c.evictor.Applied()
	}
	return err
}

// applyInternal applies an event of the journal itself: any that is not handled by the switch is a source_consumed.
func (c *core[S]) applyInternal(ev *Event) error {
	s, ok := ev.Payload.(*structpb.Struct)
	if !ok {
		return fmt.Errorf("%s has a %T", ev.Type, ev.Payload)
	}
	number := func(key string) uint64 { return uint64(s.GetFields()[key].GetNumberValue()) }
	switch ev.Type {
	case TypePartitionOpened:
		c.generation = number("generation")
		return nil
	case TypeRequestAnswered, TypeIncarnationBegan, event.TypeLineErased:
		return nil // the request memory reads the envelope of the first, followers read the second
	case TypeSnapshotTaken:
		return c.track.Announce(s)
	case event.TypeOwnerErased:
		return c.applyErased(ev.WalSeq, s)
	}

	k := sourceKey{s.GetFields()["plane"].GetStringValue(), int(number("partition"))}
	pos := c.position(k)
	pos.seq, pos.line, pos.framesSinceWrite, pos.needsWrite = number("sequence"), int(number("line")), 0, false
	if text := s.GetFields()["consumed"].GetStringValue(); text != "" {
		var err error
		pos.consumed, err = framelog.ParseEnd(text)
		return err
	}
	// An earlier version, which did not chain frames, wrote the position. Of the end only Seq is known.
	pos.consumed = framelog.End{Seq: pos.seq}
	if pos.line > 0 {
		pos.consumed.Seq--
	}
	return nil
}

// restoreRequest rebuilds the request memory from an envelope (SPEC X2: also across restarts). The events of a
// command are consecutive in one frame, so each call adds one event to its request. A request id that the loop
// generated, which has no hash of arguments beside it, is put into c.recovered if it is in awaiting, and ignored
// otherwise.
func (c *core[S]) restoreRequest(ev *Event, awaiting map[string]struct{}) {
	if ev.RequestID == "" {
		return
	}
	args, callerGaveID := requests.ParseHash(ev.RequestHash)
	if !callerGaveID {
		if _, ok := awaiting[ev.RequestID]; ok {
			r := c.recovered[ev.RequestID]
			if r.Count == 0 {
				r.First = ev.WalSeq
			}
			r.Count++
			c.recovered[ev.RequestID] = r
		}
		return
	}
	k := requests.KeyOf(ev.CallerNamespace(), requests.CallerOf(ev.Principal, ev.ActorAgentID, ev.ActorKeyID),
		ev.Method, ev.RequestID)
	if c.memory.Extend(k, ev.WalSeq, args) {
		return
	}
	c.memory.Add(k, requests.Entry{
		First: ev.WalSeq, Args: args, Count: 1,
		Unix: uint32(c.ages.Of(ev.CreatedAt).Unix()),
	})
}
