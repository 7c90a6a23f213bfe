package work

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

	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// maxPlanBytes is the largest plan file that is hashed: 128 MiB take a tenth
	// of a second, once for each change. Of a larger one the preview is shown.
	maxPlanBytes = 128 << 20
	// largePlanBytes is what may be hashed by everybody at once. Of larger plans
	// one at a time is, so that no agent's odd plan takes the others' processors.
	largePlanBytes = 4 << 20
	// headBytes hold any preview: a character has at most four bytes.
	headBytes = 4*previewChars + utf8.UTFMax
)

// notText is the problem of a file that is no UTF-8 text or holds a NUL.
const notText = "not_text"

var (
	emptySHA   = hex.EncodeToString(sha256.New().Sum(nil))
	largePlans sync.Mutex
)

// read describes a regular file as it is now. It takes a fixed amount of memory
// whatever the file's size.
func (h *home) read(name string, st fs.FileInfo) *workv1.PlanArtifact {
	path := filepath.Join(h.path, name)
	a := &workv1.PlanArtifact{
		Path: path, Bytes: st.Size(), UpdatedAt: timestamppb.New(st.ModTime().UTC()),
	}
	if st.Size() == 0 {
		a.Sha256, a.PreviewComplete = emptySHA, true
		return a
	}
	// Should a pipe have taken the file's place since the look, opening it does
	// not wait for a writer.
	f, err := h.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return problem(path, st.Size(), missingOr(err))
	}
	defer func() { _ = f.Close() }()
	if opened, err := f.Stat(); err != nil || !opened.Mode().IsRegular() || !os.SameFile(opened, st) {
		return problem(path, st.Size(), "unreadable") // it was exchanged just now; the next read sees what it is
	}
	switch {
	case st.Size() > maxPlanBytes:
		return h.headOf(f, a)
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
	a.Preview = cut(string(t.head), previewChars)
	a.PreviewComplete = int64(len(a.GetPreview())) == n
	return a
}

// headOf describes a file that is too large to be read whole.
func (h *home) headOf(f io.Reader, a *workv1.PlanArtifact) *workv1.PlanArtifact {
	a.Problem = "too_large"
	t := textSum{sum: sha256.New()}
	if _, err := io.Copy(&t, io.LimitReader(f, headBytes)); err == nil && !t.binary {
		a.Preview = cut(string(t.head), previewChars)
	}
	return a
}

// textSum hashes what is written to it, keeps the head, and checks that it is
// text, also where a character lies across two writes.
type textSum struct {
	sum    hash.Hash
	head   []byte
	rest   []byte // the beginning of a character
	binary bool
}

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
	whole := wholeRunes(b)
	if !utf8.Valid(b[:whole]) {
		t.binary = true
		return n, nil
	}
	t.keep(b[:whole])
	t.rest = append(t.rest, b[whole:]...)
	return n, nil
}

func (t *textSum) keep(b []byte) {
	if room := headBytes - len(t.head); room > 0 {
		t.head = append(t.head, b[:min(room, len(b))]...)
	}
}

// wholeRunes is the length of b without a character that only begins at its end.
func wholeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		if at := len(b) - back; utf8.RuneStart(b[at]) {
			if utf8.FullRune(b[at:]) {
				return len(b)
			}
			return at
		}
	}
	return len(b)
}

// cut shortens text to n runes. A character that is cut off at its end, beyond
// them, does not matter.
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
