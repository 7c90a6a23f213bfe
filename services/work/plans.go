package work

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// previewChars bounds a preview (SPEC W3).
	previewChars = 1600
	// maxPlanBytes is the largest plan file that is read. Larger ones are shown
	// by size alone: a plan that long is no plan, and reading it would stall
	// every list it is in.
	maxPlanBytes = 4 << 20
	// Making a folder and a file costs 250 µs of ext4's time here, a hundred
	// times what the journal costs per item. Up to this rate the file is made
	// before the answer; above it whoever reads or picks the item first makes
	// it. See docs/adr/0004.
	eagerPerSecond = 100
	eagerBurst     = 256
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
	cache map[string]described
}

// described is a descriptor and the identity of the file it was made from.
type described struct {
	file     fs.FileInfo
	artifact *workv1.PlanArtifact
}

// still says whether a look would find the same content again. A file that was
// put in the place of another, as most editors do, is another one even with the
// same size and time.
func (d described) still(st fs.FileInfo) bool {
	return d.file.Size() == st.Size() && d.file.ModTime().Equal(st.ModTime()) && os.SameFile(d.file, st)
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
		path: abs, root: root, cache: map[string]described{},
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
func (h *home) close() { _ = h.Close() }

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
	if err := h.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return planTrouble(name, err)
	}
	// The name appears with its whole content or not at all.
	tmp := name + ".new"
	f, err := h.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return planTrouble(name, err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return planTrouble(name, err)
	}
	if err := h.Rename(tmp, name); err != nil {
		return planTrouble(name, err)
	}
	dir, err := h.Open(filepath.Dir(name))
	if err != nil {
		return planTrouble(name, err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
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
	asItIs  want = iota // a look is enough
	present             // the file is there
	soon                // the file is there unless too many are being made
	fresh               // soon, of an item that nobody knew until now
)

// attach puts the plan descriptor on an item that is about to be answered.
func (p *plans) attach(namespace string, it *workv1.WorkItem, w want) {
	if it == nil {
		return
	}
	const sep = string(filepath.Separator)
	// Every part is clean: a name or an id. See planName.
	path := p.path + sep + namespace + sep + it.GetAgentId() + sep + "work-items" + sep + it.GetWorkItemId() + sep + "plan.md"
	if a := p.glance(path); a != nil {
		it.PlanArtifact = a
		return
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
	it.PlanArtifact = p.describe(h, name)
}

// glance is the descriptor that was made before, if the same file is still
// there, unchanged; else nil. It is one system call where the confined way is
// twelve, which were a seventh of an UpdateWorkItem's processor time. The look
// itself follows whatever links there are, but it shows nothing: it only
// compares with the file that was read the confined way.
func (p *plans) glance(path string) *workv1.PlanArtifact {
	p.mu.Lock()
	d, ok := p.cache[path]
	p.mu.Unlock()
	if !ok {
		return nil
	}
	if st, err := os.Lstat(path); err != nil || !d.still(st) {
		return nil
	}
	return d.artifact
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
func (p *plans) describe(h *home, name string) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	st, err := h.Lstat(name)
	if err != nil {
		return problem(path, 0, missingOr(err))
	}
	if !st.Mode().IsRegular() {
		return problem(path, 0, "not_a_regular_file")
	}
	if st.Size() > maxPlanBytes {
		return problem(path, st.Size(), "too_large")
	}
	artifact := h.read(name, st)
	// A file written within the clock's grain of the look could change again
	// without its time changing; such a look is not kept.
	if time.Since(st.ModTime()) > 20*time.Millisecond {
		p.mu.Lock()
		if len(p.cache) >= planCacheEntries {
			for k := range p.cache { // any one: the map's order is random
				delete(p.cache, k)
				break
			}
		}
		p.cache[path] = described{file: st, artifact: artifact}
		p.mu.Unlock()
	}
	return artifact
}

var emptySHA = hex.EncodeToString(sha256.New().Sum(nil))

func (h *home) read(name string, st fs.FileInfo) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	a := &workv1.PlanArtifact{
		Path: path, Bytes: st.Size(), UpdatedAt: timestamppb.New(st.ModTime().UTC()),
	}
	if st.Size() == 0 {
		a.Sha256, a.PreviewComplete = emptySHA, true
		return a
	}
	f, err := h.Open(name)
	if err != nil {
		return problem(path, st.Size(), missingOr(err))
	}
	body, err := io.ReadAll(io.LimitReader(f, maxPlanBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return problem(path, st.Size(), "unreadable")
	}
	sum := sha256.Sum256(body)
	a.Sha256, a.Bytes = hex.EncodeToString(sum[:]), int64(len(body))
	if !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 {
		a.Problem = "not_text"
		return a
	}
	a.Preview = cut(string(body), previewChars)
	a.PreviewComplete = len(a.GetPreview()) == len(body)
	return a
}

// cut shortens valid text to n runes.
func cut(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func missingOr(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "missing"
	}
	return "unreadable"
}

func problem(path string, size int64, what string) *workv1.PlanArtifact {
	return &workv1.PlanArtifact{Path: path, Bytes: size, Problem: what}
}
