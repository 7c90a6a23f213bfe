package homes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	// Making a folder and a file takes 250 µs on ext4, a hundred times what the journal
	// takes for an item. Up to this rate the file is made before the response; above it,
	// whoever reads or picks the item first makes it. Empty files of completed items are removed
	// up to the same rate. See docs/adr/0004.
	eagerPerSecond = 20
	eagerBurst     = 64
	// planCacheEntries bounds the cache of descriptors.
	planCacheEntries = 8192
)

// Plans describes the plan files of work items:
// <namespace>/<agent>/work-items/<item>/plan.md below the directory of homes. The file is
// the authority and belongs to the agent: Plans never writes to one that exists.
type Plans struct {
	dir      *Dir
	eager    *rate.Limiter
	discards *rate.Limiter

	mu    sync.Mutex
	cache map[item]described
	aside []aside // oldest first
}

// item names a work item, which belongs to the same agent for as long as it exists.
type item struct{ namespace, id string }

// described is a descriptor and the identity of the file that it was made from.
type described struct {
	file     fs.FileInfo // nil: there was none
	artifact *workv1.PlanArtifact
}

// NewPlans returns the plans below dir.
func NewPlans(dir *Dir) *Plans {
	return &Plans{
		dir: dir, cache: map[item]described{}, eager: rate.NewLimiter(eagerPerSecond, eagerBurst),
		discards: rate.NewLimiter(eagerPerSecond, eagerBurst),
	}
}

// describes reports whether the file, which is st now, still has the content that was described. A file that
// replaced another, as most editors do, has another identity even with the same size and
// time; one that was written in place and given its old time back, as some synchronisation
// tools do, has another time of change.
func (d described) describes(st fs.FileInfo) bool {
	return d.file != nil && d.file.Size() == st.Size() && d.file.ModTime().Equal(st.ModTime()) &&
		changedAt(d.file).Equal(changedAt(st)) && os.SameFile(d.file, st)
}

// unambiguous reports whether a file has not been written for longer than the clock's
// granularity. One written more recently could change again without its times changing,
// so its descriptor is not cached.
func unambiguous(st fs.FileInfo) bool {
	const granularity = 20 * time.Millisecond
	return time.Since(st.ModTime()) > granularity && time.Since(changedAt(st)) > granularity
}

// planName returns the path of a plan file relative to the agent's home. The id was
// validated, so the path stays in the home; os.Root would refuse it otherwise.
func planName(itemID string) string { return filepath.Join("work-items", itemID, "plan.md") }

// Seed writes the first text of a plan, which is on disk when it returns, and reports whether it made the file. A file
// that exists stays as it is, because a repeated request must not undo the agent's edits. Since the first request may
// have ended before the directories of the file were on disk, Seed also syncs those of a file that exists. If it fails,
// it leaves nothing that it made in the home. Calls for the same item must not overlap.
func (p *Plans) Seed(namespace, agentID, itemID, text string) (made bool, err error) {
	name := planName(itemID)
	h, err := p.dir.Open(namespace, agentID, true)
	if err != nil {
		return false, seedError(name, err)
	}
	defer h.Close()
	if _, err := h.root.Lstat(name); err == nil {
		if err := h.syncDirs(filepath.Dir(name)); err != nil {
			return false, seedError(name, err)
		}
		return false, nil
	}
	if _, err := h.Write(name, []byte(text), 0o640, itemID); err != nil {
		h.unseed(name)
		return false, seedError(name, err)
	}
	return true, nil
}

// Unseed removes a plan file that Seed made, and its folder if nothing else is in it: there is no item for it. A file
// that cannot be removed stays.
func (p *Plans) Unseed(namespace, agentID, itemID string) {
	if h, err := p.dir.Open(namespace, agentID, false); err == nil {
		h.unseed(planName(itemID))
		h.Close()
	}
}

// unseed removes the plan file with a name, and its folder if nothing else is in it. What cannot be removed stays.
func (h *Home) unseed(name string) {
	_ = h.root.Remove(name)
	_ = h.root.Remove(filepath.Dir(name))
}

// seedError returns the error of a plan file that could not be written.
func seedError(name string, err error) error {
	return fault.Storage.Newf("the plan file %s could not be written; nothing was created", name).
		With("outcome", "none").WithCause(err)
}

// PlanPath returns the path of the plan file of an item in its agent's home.
func PlanPath(itemID string) string { return filepath.ToSlash(planName(itemID)) }

// Effort says how much Attach does for a descriptor.
type Effort int

const (
	// AsIs describes the file as it is now.
	AsIs Effort = iota
	// LastSeen takes the cached descriptor without a system call, and is AsIs if there is none.
	// It is for responses of writes, which are no reads of the file.
	LastSeen
	// Ensured makes the file of an open item if its folder is missing.
	Ensured
	// Eager is Ensured up to the rate of eagerPerSecond, and AsIs above it.
	Eager
	// EagerNew is Eager for an item that was created just now, so that no file can exist.
	EagerNew
)

// Attach sets the plan descriptor of an item that is about to be returned; it may be nil. With
// Ensured, and at times with Eager and EagerNew, it first makes an empty plan file for an open item
// that has no folder. If the file cannot be described, the descriptor's problem says why.
func (p *Plans) Attach(namespace string, it *workv1.WorkItem, e Effort) {
	if it == nil {
		return
	}
	k := item{namespace, it.GetWorkItemId()}
	if e == LastSeen {
		if d, ok := p.cached(k); ok {
			it.PlanArtifact = d.artifact
			return
		}
	}
	const sep = string(filepath.Separator)
	// Every part is a validated name or id; see planName.
	path := p.dir.path + sep + namespace + sep + it.GetAgentId() + sep + "work-items" + sep + it.GetWorkItemId() + sep +
		"plan.md"

	// A file that has not changed is not read again.
	if e != EagerNew {
		if a := p.unchanged(k, it, path, e); a != nil {
			it.PlanArtifact = a
			return
		}
	}

	// Make the file if the effort says so, and read it.
	name := planName(it.GetWorkItemId())
	create := it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN &&
		(e == Ensured || e >= Eager && p.eager.Allow())
	if e == EagerNew && !create { // there can be no file
		it.PlanArtifact = problem(path, 0, "missing")
		return
	}
	h, err := p.dir.Open(namespace, it.GetAgentId(), create)
	if err != nil {
		it.PlanArtifact = problem(path, 0, missingOr(err))
		return
	}
	defer h.Close()
	if create {
		h.ensurePlan(name)
	}
	it.PlanArtifact = p.describe(h, k, name)
}

// unchanged returns the cached descriptor if the file is still the one from which it was made. If there is no file,
// it first puts back the plan of a completed item that is kept aside (see restore); if it did not, and e is an
// Effort that creates no file, it returns a descriptor with the problem "missing". In all other cases it returns
// nil, and the caller must read the file below the home. For a file that exists it takes one system call, where
// opening it below the home takes twelve, which were a seventh of the processor time of UpdateWorkItem. The call
// follows links out of the home, but shows nothing of what it finds: unchanged only compares that with the file that
// was read below the home.
func (p *Plans) unchanged(k item, it *workv1.WorkItem, path string, e Effort) *workv1.PlanArtifact {
	d, ok := p.cached(k)
	st, err := os.Lstat(path)
	switch {
	case ok && err == nil && d.describes(st):
		return d.artifact
	case errors.Is(err, fs.ErrNotExist) && it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED &&
		p.restore(k.namespace, it.GetAgentId(), k.id):
		return nil
	case errors.Is(err, fs.ErrNotExist) && e <= LastSeen:
		a := problem(path, 0, "missing")
		if ok || e == LastSeen { // only LastSeen finds a descriptor without a file again
			p.store(k, described{artifact: a})
		}
		return a
	}
	return nil
}

// cached returns the cached descriptor of an item, and whether there is one.
func (p *Plans) cached(k item) (described, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.cache[k]
	return d, ok
}

// store puts a descriptor into the cache, in place of a random one if it is full.
func (p *Plans) store(k item, d described) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cache) >= planCacheEntries {
		for one := range p.cache { // the order of a map is random
			delete(p.cache, one)
			break
		}
	}
	p.cache[k] = d
}

// ensurePlan makes an empty plan file if its folder is missing. A file that was removed
// from its folder stays removed, and shows as missing.
func (h *Home) ensurePlan(name string) {
	if _, err := h.root.Lstat(filepath.Dir(name)); err == nil {
		return
	}
	// An error shows in the descriptor: the item exists, and the next read tries again.
	if h.root.MkdirAll(filepath.Dir(name), 0o750) != nil {
		return
	}
	if f, err := h.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640); err == nil {
		_ = f.Close()
	}
}

// describe returns the descriptor of a plan file, with a problem if the file cannot be shown. It caches that of a
// regular file with the file's identity, so that the next read sees an edit by another program (SPEC W3), unless the
// file was written so recently that such an edit might not show (see unambiguous).
func (p *Plans) describe(h *Home, k item, name string) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	st, err := h.root.Lstat(name)
	if err != nil {
		return problem(path, 0, missingOr(err))
	}
	if !st.Mode().IsRegular() {
		return problem(path, 0, "not_a_regular_file")
	}
	artifact := h.readPlan(name, st)
	if unambiguous(st) {
		p.store(k, described{file: st, artifact: artifact})
	}
	return artifact
}

// problem returns the descriptor of a plan file that cannot be shown, for the reason what,
// such as missing.
func problem(path string, size int64, what string) *workv1.PlanArtifact {
	return &workv1.PlanArtifact{Path: path, Bytes: size, Problem: what}
}
