package work

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
	// previewChars bounds a preview (SPEC W3).
	previewChars = 1600
	// Making a folder and a file costs 250 µs of ext4's time here, a hundred
	// times what the journal costs per item. Up to this rate the file is made
	// before the answer; above it whoever reads or picks the item first makes
	// it. See docs/adr/0004.
	eagerPerSecond = 20
	eagerBurst     = 64
	// planCacheEntries bounds the descriptors kept.
	planCacheEntries = 8192
)

// plans keeps the plan files: home/<namespace>/<agent>/work-items/<item>/plan.md.
// The file is the truth and belongs to the agent; nothing here writes to one
// that exists.
type plans struct {
	path  string // absolute
	root  *os.Root
	eager *rate.Limiter

	mu    sync.Mutex
	cache map[key]described // by item, which has one agent for ever
}

// described is a descriptor and the identity of the file it was made from.
type described struct {
	file     fs.FileInfo // nil: there was none
	artifact *workv1.PlanArtifact
}

// still says whether a look would find the same content again. A file that was
// put in the place of another, as most editors do, is another one even with the
// same size and time; and one that was written in place and given its old time
// back, as some sync tools do, has another time of change.
func (d described) still(st fs.FileInfo) bool {
	return d.file != nil && d.file.Size() == st.Size() && d.file.ModTime().Equal(st.ModTime()) && changedAt(d.file).Equal(changedAt(st)) && os.SameFile(d.file, st)
}

// settled says whether a file was left alone for longer than the clock's grain:
// one written more recently could change again without its times changing, so
// a look at it is not kept.
func settled(st fs.FileInfo) bool {
	const grain = 20 * time.Millisecond
	return time.Since(st.ModTime()) > grain && time.Since(changedAt(st)) > grain
}

func openPlans(home string) (*plans, error) {
	abs, err := filepath.Abs(home)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o750); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	return &plans{
		path: abs, root: root, cache: map[key]described{},
		eager: rate.NewLimiter(eagerPerSecond, eagerBurst),
	}, nil
}

func (p *plans) close() error { return p.root.Close() }

// planName is relative to the agent's home. Every part was validated as a name
// or an id, so none can climb; os.Root would refuse it anyhow.
func planName(itemID string) string { return filepath.Join("work-items", itemID, "plan.md") }

// home is an agent's own directory as a root of its own: a link that the agent
// lays from its home into another agent's, or another tenant's, leads nowhere.
type home struct {
	*os.Root
	path string // absolute
}

// close lets go of a directory that was only read through.
func (h *home) close() {
	if h != nil {
		_ = h.Close()
	}
}

// home opens an agent's home; with create, it is there afterwards.
func (p *plans) home(namespace, agentID string, create bool) (*home, error) {
	name := filepath.Join(namespace, agentID)
	root, err := p.root.OpenRoot(name)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err = p.root.MkdirAll(name, 0o750); err == nil {
			root, err = p.root.OpenRoot(name)
		}
	}
	if err != nil {
		return nil, err
	}
	return &home{root, filepath.Join(p.path, name)}, nil
}

// seed writes the first text of a plan and syncs it: what the caller gave must
// be on disk before the answer says so. A file that is there stays as it is,
// since a repeated request must not undo the agent's edits.
func (p *plans) seed(namespace, agentID, itemID, text string) error {
	name := planName(itemID)
	h, err := p.home(namespace, agentID, true)
	if err != nil {
		return planTrouble(name, err)
	}
	defer h.close()
	if _, err := h.Lstat(name); err == nil {
		return nil
	}
	// The name appears with its whole content or not at all.
	if err := h.place(name, []byte(text), 0o640, itemID); err != nil {
		return planTrouble(name, err)
	}
	return nil
}

func planTrouble(name string, err error) error {
	return fault.Storage.Newf("the plan file %s could not be written; nothing was created", name).
		With("outcome", "none").WithCause(err)
}

// want says what must be true of a plan file before it is described.
type want int

const (
	asItIs   want = iota // a look is enough
	lastSeen             // so is the last look: of the answer of a write, which is no read
	present              // the file is there
	soon                 // the file is there unless too many are being made
	fresh                // soon, of an item that nobody knew until now
)

// attach puts the plan descriptor on an item that is about to be answered.
func (p *plans) attach(namespace string, it *workv1.WorkItem, w want) {
	if it == nil {
		return
	}
	k := key{namespace, it.GetWorkItemId()}
	if w == lastSeen {
		if d, ok := p.seen(k); ok {
			it.PlanArtifact = d.artifact
			return
		}
	}
	const sep = string(filepath.Separator)
	// Every part is clean: a name or an id. See planName.
	path := p.path + sep + namespace + sep + it.GetAgentId() + sep + "work-items" + sep + it.GetWorkItemId() + sep + "plan.md"
	if w != fresh {
		if a := p.glance(k, path, w); a != nil {
			it.PlanArtifact = a
			return
		}
	}
	name := planName(it.GetWorkItemId())
	create := it.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_OPEN && (w == present || w >= soon && p.eager.Allow())
	if w == fresh && !create {
		it.PlanArtifact = problem(path, 0, "missing")
		return
	}
	h, err := p.home(namespace, it.GetAgentId(), create)
	if err != nil {
		it.PlanArtifact = problem(path, 0, missingOr(err))
		return
	}
	defer h.close()
	if create {
		h.ensure(name)
	}
	it.PlanArtifact = p.describe(h, k, name)
}

// glance is the descriptor that was made before, if the same file is still
// there, unchanged; else nil. It is one system call where the confined way is
// twelve, which were a seventh of an UpdateWorkItem's processor time; the call
// itself is another fifteenth, so the answers of writes do without. The look
// itself follows whatever links there are, but it shows nothing: it only
// compares with the file that was read the confined way, or says that there is
// none, which is how most plans of a large installation are.
func (p *plans) glance(k key, path string, w want) *workv1.PlanArtifact {
	d, ok := p.seen(k)
	st, err := os.Lstat(path)
	switch {
	case ok && err == nil && d.still(st):
		return d.artifact
	case errors.Is(err, fs.ErrNotExist) && w <= lastSeen:
		a := problem(path, 0, "missing")
		if ok || w == lastSeen {
			p.keep(k, described{artifact: a})
		}
		return a
	}
	return nil
}

// seen is what the last look found.
func (p *plans) seen(k key) (described, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.cache[k]
	return d, ok
}

// keep remembers what a look found.
func (p *plans) keep(k key, d described) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cache) >= planCacheEntries {
		for one := range p.cache { // the map's order is random
			delete(p.cache, one)
			break
		}
	}
	p.cache[k] = d
}

// ensure makes an empty plan file the first time, which is when its folder is
// missing too. A file that was there and is gone stays gone, and shows as missing.
func (h *home) ensure(name string) {
	if _, err := h.Lstat(filepath.Dir(name)); err == nil {
		return
	}
	// Trouble shows in the descriptor's problem field: the item stands, durable,
	// and the next read tries again.
	if h.MkdirAll(filepath.Dir(name), 0o750) != nil {
		return
	}
	if f, err := h.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640); err == nil {
		_ = f.Close()
	}
}

// describe computes the descriptor of a plan file, cached by the identity of
// the file: an edit by another program is seen on the next read (SPEC W3).
func (p *plans) describe(h *home, k key, name string) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	st, err := h.Lstat(name)
	if err != nil {
		return problem(path, 0, missingOr(err))
	}
	if !st.Mode().IsRegular() {
		return problem(path, 0, "not_a_regular_file")
	}
	artifact := h.read(name, st)
	if settled(st) {
		p.keep(k, described{file: st, artifact: artifact})
	}
	return artifact
}

func problem(path string, size int64, what string) *workv1.PlanArtifact {
	return &workv1.PlanArtifact{Path: path, Bytes: size, Problem: what}
}
