package homes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// asideTerm is how long an empty plan file is kept aside before it is removed. A program that opened it before may
	// still write to it.
	asideTerm = time.Minute
	// mostAside bounds how many are kept aside.
	mostAside = 4096
)

// aside is the plan file of a completed item that is kept aside.
type aside struct {
	item
	agentID string
	since   time.Time
}

// asideName returns the path of a file that is kept aside, relative to the agent's home.
func asideName(itemID string) string { return filepath.Join("work-items", stagedPrefix+itemID) }

// Discard removes the plan file of a completed item if it is empty, and its folder if nothing else is in it: an agent
// that completes items for years would otherwise leave a folder for each. Above the rate of eagerPerSecond it does
// nothing. The file is first kept aside for asideTerm. If a program that had opened it before writes to it meanwhile,
// clear, or restore when the item is read, puts it back. A file that cannot be removed stays.
func (p *Plans) Discard(namespace, agentID, itemID string) {
	p.clear(time.Now().Add(-asideTerm)) // what earlier calls have kept aside
	name := planName(itemID)
	if st, err := os.Lstat(filepath.Join(p.dir.path, namespace, agentID, name)); err != nil || !isEmptyFile(st) ||
		!p.discards.Allow() {
		return
	}
	h, err := p.dir.Open(namespace, agentID, false)
	if err != nil {
		return
	}
	defer h.Close()
	// The first look, which is cheap, may have followed a link out of the home.
	if st, err := h.root.Lstat(name); err != nil || !isEmptyFile(st) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.aside) == mostAside || h.root.Rename(name, asideName(itemID)) != nil {
		return
	}
	_ = h.root.Remove(filepath.Dir(name))
	p.aside = append(p.aside, aside{item{namespace, itemID}, agentID, time.Now()})
}

// clear removes the files that have been kept aside since a time or longer, and puts back those that are not empty any
// more.
func (p *Plans) clear(until time.Time) {
	p.mu.Lock()
	n := 0
	for n < len(p.aside) && !p.aside[n].since.After(until) {
		n++
	}
	due := p.aside[:n:n]
	if p.aside = p.aside[n:]; len(p.aside) == 0 {
		p.aside = nil
	}
	p.mu.Unlock()
	for _, a := range due {
		if h, err := p.dir.Open(a.namespace, a.agentID, false); err == nil {
			h.clear(a.id)
			h.Close()
		}
	}
}

// Close removes what is kept aside and still empty, and puts back the others.
func (p *Plans) Close() { p.clear(time.Now()) }

// restore puts back the plan of an item that is kept aside and is not empty any more, when the item is read before
// clear is called. It returns false if there is no such plan.
func (p *Plans) restore(namespace, agentID, itemID string) bool {
	st, err := os.Lstat(filepath.Join(p.dir.path, namespace, agentID, asideName(itemID)))
	if err != nil || isEmptyFile(st) {
		return false
	}
	h, err := p.dir.Open(namespace, agentID, false)
	if err != nil {
		return false
	}
	defer h.Close()
	h.clear(itemID)
	_, err = h.root.Lstat(planName(itemID))
	return err == nil
}

// clear removes the plan of an item that was kept aside, or puts it back if it is not empty. It leaves it aside if
// the item has another plan file by now.
func (h *Home) clear(itemID string) {
	source, name := asideName(itemID), planName(itemID)
	st, err := h.root.Lstat(source)
	if err != nil {
		return
	}
	if !isEmptyFile(st) {
		if h.root.MkdirAll(filepath.Dir(name), 0o750) != nil {
			return
		}
		if err := h.root.Link(source, name); errors.Is(err, fs.ErrExist) {
			return
		} else if err != nil { // the file system has no links
			_ = h.root.Rename(source, name)
			return
		}
	}
	_ = h.root.Remove(source)
}

// isEmptyFile reports whether st describes a regular file without content.
func isEmptyFile(st fs.FileInfo) bool { return st.Mode().IsRegular() && st.Size() == 0 }
