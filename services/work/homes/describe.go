package homes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unicode/utf8"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
)

const (
	// previewChars bounds a preview (SPEC W3).
	previewChars = 1600
	// maxPlanBytes is the size of the largest plan file that is hashed: 128 MiB take a
	// tenth of a second, once for each change. Of a larger one only a preview is shown.
	maxPlanBytes = 128 << 20
	// largePlanBytes is the size above which one file at a time is hashed, so that no
	// agent's large plan takes the processors of the others.
	largePlanBytes = 4 << 20
	// headBytes are enough for any preview: a character has at most four bytes.
	headBytes = 4*previewChars + utf8.UTFMax
)

// notText is the problem of a file that is not UTF-8 text or contains a NUL.
const notText = "not_text"

var (
	emptySHA   = hex.EncodeToString(sha256.New().Sum(nil))
	largePlans sync.Mutex
)

// readPlan describes the regular file name, which st was when it was looked up. It takes a fixed
// amount of memory, and reports errors as the descriptor's problem.
func (h *Home) readPlan(name string, st fs.FileInfo) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	a := &workv1.PlanArtifact{
		Path: path, Bytes: st.Size(), UpdatedAt: shownTime(st),
	}
	if st.Size() == 0 {
		a.Sha256, a.PreviewComplete = emptySHA, true
		return a
	}
	// If a pipe has replaced the file since it was looked up, opening it does not wait for
	// a writer.
	f, err := h.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return problem(path, st.Size(), missingOr(err))
	}
	defer func() { _ = f.Close() }()
	if opened, err := f.Stat(); err != nil || !opened.Mode().IsRegular() || !os.SameFile(opened, st) {
		return problem(path, st.Size(), "unreadable") // it was replaced just now; the next read describes the new one
	}
	switch {
	case st.Size() > maxPlanBytes:
		return previewOf(f, a)
	case st.Size() > largePlanBytes:
		largePlans.Lock()
		defer largePlans.Unlock()
	}
	t := textSum{sum: sha256.New()}
	n, err := io.Copy(&t, io.LimitReader(f, maxPlanBytes+1))
	if err != nil {
		return problem(path, st.Size(), "unreadable")
	}
	a.Sha256, a.Bytes = hex.EncodeToString(t.sum.Sum(nil)), n
	if t.binary || len(t.rest) > 0 {
		a.Problem = notText
		return a
	}
	a.Preview = utf8cut.Chars(string(t.head), previewChars)
	a.PreviewComplete = int64(len(a.GetPreview())) == n
	return a
}

// previewOf completes the descriptor of a file that is too large to be read to its end.
func previewOf(f io.Reader, a *workv1.PlanArtifact) *workv1.PlanArtifact {
	a.Problem = "too_large"
	t := textSum{sum: sha256.New()}
	if _, err := io.Copy(&t, io.LimitReader(f, headBytes)); err == nil && !t.binary {
		a.Preview = utf8cut.Chars(string(t.head), previewChars)
	}
	return a
}

// textSum is a writer that hashes what is written to it, keeps the beginning, and checks
// that it is text. A character may be divided between two writes.
type textSum struct {
	sum    hash.Hash
	head   []byte
	rest   []byte // the beginning of a character that the next write completes
	binary bool
}

// Write implements io.Writer. It never fails.
func (t *textSum) Write(b []byte) (int, error) {
	n := len(b)
	t.sum.Write(b)
	if t.binary {
		return n, nil
	}
	if bytes.IndexByte(b, 0) >= 0 {
		t.binary = true
		return n, nil
	}
	if len(t.rest) > 0 {
		// Complete the character that the last write began.
		for len(b) > 0 && !utf8.FullRune(t.rest) {
			t.rest, b = append(t.rest, b[0]), b[1:]
		}
		if !utf8.FullRune(t.rest) {
			return n, nil
		}
		if !utf8.Valid(t.rest) {
			t.binary = true
			return n, nil
		}
		t.keep(t.rest)
		t.rest = nil
	}
	whole := len(b) - utf8cut.Partial(b)
	if !utf8.Valid(b[:whole]) {
		t.binary = true
		return n, nil
	}
	t.keep(b[:whole])
	t.rest = append(t.rest, b[whole:]...)
	return n, nil
}

// keep appends to the head while it is shorter than headBytes.
func (t *textSum) keep(b []byte) {
	if room := headBytes - len(t.head); room > 0 {
		t.head = append(t.head, b[:min(room, len(b))]...)
	}
}

// missingOr returns the problem of a file that could not be opened.
func missingOr(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "missing"
	}
	return "unreadable"
}
