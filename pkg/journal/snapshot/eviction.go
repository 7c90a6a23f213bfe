package snapshot

import (
	"go.uber.org/zap"

	"quartet/pkg/resident"
)

const (
	// Batch is how many owners are looked at while a state is locked for it; to evict one takes about 20 µs.
	Batch = 64
	// DefaultKeep is how many owners of a partition stay in memory in any case.
	DefaultKeep = 256
	// replayKeep is the least such number while events are replayed, which may use each owner again and again.
	replayKeep = 1 << 14
)

// Which owners are evicted.
const (
	anyOwner   = false
	unusedOnly = true // those that were not used since they were last looked at
)

// EvictionPolicy says where and when owners are evicted.
type EvictionPolicy struct {
	// Dir is a directory for files of this process, which have no name; "": that for temporary files.
	Dir string
	// Keep is how many owners of a partition stay in memory; default DefaultKeep.
	Keep int
	// Always evicts whatever can be after each event. Tests only.
	Always bool

	off bool // see NoEviction
}

// NoEviction returns the EvictionPolicy after a file was unreadable: all owners stay in memory.
func NoEviction() *EvictionPolicy { return &EvictionPolicy{off: true} }

// On reports whether owners are evicted. A nil *EvictionPolicy is not on.
func (p *EvictionPolicy) On() bool { return p != nil && !p.off }

// OwnerCounts says where the owners of a state are.
type OwnerCounts struct {
	resident.Counts
	// FileBytes is the size of the file.
	FileBytes int64
	// Failed means that owners stay in memory because the last write to the file failed, there is no file, or it was
	// unreadable.
	Failed bool
}

// Evictor evicts owners of one state. A nil *Evictor does nothing. The caller of a method other than Counts must have
// exclusive use of the state.
type Evictor struct {
	policy EvictionPolicy
	state  Resident
	file   *resident.File // nil if all owners stay in memory
	logger *zap.Logger
	added  int
	failed bool // see Counts.Failed
}

// NewEvictor returns the Evictor of an empty state; nil if p is nil, or if the state is no Resident. If p is off, or
// no file can be created, the Evictor evicts nothing.
func NewEvictor(state any, p *EvictionPolicy, logger *zap.Logger) *Evictor {
	evictable, ok := state.(Resident)
	if !ok || p == nil {
		return nil
	}
	e := &Evictor{policy: *p, state: evictable, logger: logger, failed: true}
	if e.policy.Keep == 0 {
		e.policy.Keep = DefaultKeep
	}
	if !p.On() {
		return e
	}
	f, err := resident.Create(p.Dir)
	if err != nil {
		logger.Warn("journal: no file for owners that are not used; they stay in memory", zap.Error(err))
		return e
	}
	evictable.UseFile(f)
	e.file, e.failed = f, false
	return e
}

// Close closes the file. The state may not be used any more.
func (e *Evictor) Close() {
	if e != nil && e.file != nil {
		_ = e.file.Close()
	}
}

// PageAdded must be called after each page that a load adds from a snapshot. Every Batch calls, if more than
// Policy.Keep owners are in memory, it evicts all that can be among the next 2*Batch, whether or not they were used.
func (e *Evictor) PageAdded() { e.loaded(anyOwner, e.keep()) }

// Replayed must be called after each event that a load reads from the log and applies. Every Batch calls, if more
// than the larger of Policy.Keep and replayKeep owners are in memory, it evicts those of the next 2*Batch that were
// not used since they were last looked at.
func (e *Evictor) Replayed() { e.loaded(unusedOnly, max(e.keep(), replayKeep)) }

// keep returns Policy.Keep, 0 if e is nil.
func (e *Evictor) keep() int {
	if e == nil {
		return 0
	}
	return e.policy.Keep
}

// loaded counts a page or an event of a load. At every Batch calls, if more than keep owners are in memory, it looks at
// the next 2*Batch and evicts those that can be (see evict), with unused only those that were not used since they were
// last looked at.
func (e *Evictor) loaded(unused bool, keep int) {
	if e == nil {
		return
	}
	if e.policy.Always {
		e.Applied()
		return
	}
	e.added++
	if e.added%Batch == 0 && e.state.Counts().Resident > keep {
		e.evict(2*Batch, unused)
	}
}

// Applied must be called after each event that was applied. It does nothing unless Policy.Always is set.
func (e *Evictor) Applied() {
	for more := e != nil && e.policy.Always; more; {
		more = e.evict(Batch, anyOwner)
	}
}

// Evict looks at the next Batch owners if more than Policy.Keep are in memory, and evicts those that were not used
// since they were last looked at, or all that can be evicted if unused is false. It returns false when it came to the
// last owner, if few enough are in memory, and after an error.
func (e *Evictor) Evict(unused bool) (more bool) {
	return e != nil && e.state.Counts().Resident > e.policy.Keep && e.evict(Batch, unused)
}

// evict looks at the next count owners and evicts those that can be, only unused ones if unused is set. It reports
// whether there are more to look at; false also after an error of the file, for which owners stay in memory. It logs
// the first such error, and another one only after the file could be written again.
func (e *Evictor) evict(count int, unused bool) bool {
	if e.file == nil {
		return false
	}
	n, more, err := e.state.Evict(count, unused)
	if err != nil && !e.failed {
		e.logger.Warn("journal: owners that are not used stay in memory", zap.Error(err))
	}
	e.failed = err != nil || e.failed && n == 0 // if none was evicted, nothing may have been written
	return more && err == nil
}

// Counts says where the owners are; the zero Counts if e is nil. The state may be read at the same time, and must not
// be changed.
func (e *Evictor) Counts() OwnerCounts {
	if e == nil {
		return OwnerCounts{}
	}
	c := OwnerCounts{Counts: e.state.Counts(), Failed: e.failed}
	if e.file != nil {
		c.FileBytes = e.file.Size()
	}
	return c
}
