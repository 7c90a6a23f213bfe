package homes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Absent is the precondition that there is no file yet.
const Absent = "absent"

// Change is one write of a file.
type Change struct {
	Expected  string // precondition: a SHA-256, Absent, or empty
	NeedsFile bool   // the file must exist, and Content gets what is in it
	// Content returns the new content and the number of replacements. old is nil unless
	// NeedsFile is set.
	Content func(old []byte) (content []byte, replaced int32, err error)
}

// Edited returns the content of a file after an edit, and the number of replacements.
func Edited(req *workv1.EditFileRequest, old []byte) (content []byte, count int32, err error) {
	n := bytes.Count(old, []byte(req.GetOldText()))
	switch {
	case n == 0:
		return nil, 0, fault.TextNotFound.Newf("old_text does not occur in %q exactly as given; read the file again",
			req.GetPath()).With("path", req.GetPath())
	case n > 1 && !req.GetReplaceAll():
		return nil, 0, fault.TextNotUnique.Newf("old_text occurs in %q %d times; give more of the text around it, or "+
			"set replace_all", req.GetPath(), n).
			With("path", req.GetPath()).With("places", fmt.Sprint(n))
	}
	return bytes.ReplaceAll(old, []byte(req.GetOldText()), []byte(req.GetNewText())), int32(n), nil
}

// ValidHash checks the form of expected_sha256: a SHA-256 in lower-case hex, Absent, or empty.
func ValidHash(expected string) error {
	if expected == "" || expected == Absent {
		return nil
	}
	if raw, err := hex.DecodeString(expected); err != nil || len(raw) != sha256.Size ||
		strings.ToLower(expected) != expected {
		return fault.Invalid("expected_sha256", expected, `must be a SHA-256 in lower-case hex, "absent", or empty`)
	}
	return nil
}

// Change writes the new content of a file if the precondition holds, and returns the event of the change. name makes
// the name of the temporary file unique; see Write. If the file has that content already, Change writes nothing and
// does not check the precondition: the request may be the repetition of one whose event was lost.
func (h *Home) Change(p string, c Change, name string) (*workv1.HomeFileWritten, error) {
	oldHash, mode, err := h.Hash(p)
	missing := errors.Is(err, fault.NotFound)
	switch {
	case missing && c.NeedsFile, err != nil && !missing:
		return nil, err
	case missing:
		mode = 0o640
	}
	var old []byte
	if c.NeedsFile {
		if old, err = h.ReadAll(p); err != nil {
			return nil, err
		}
	}
	content, n, err := c.Content(old)
	if err != nil {
		return nil, err
	}
	if len(content) > MaxFileBytes {
		return nil, fault.TooLarge.Newf("file %q would have %d bytes; at most %d are written through the API", p,
			len(content), MaxFileBytes).
			With("path", p).With("limit", fmt.Sprint(MaxFileBytes)).With("value", fmt.Sprint(len(content)))
	}
	sum := sha256.Sum256(content)
	after := hex.EncodeToString(sum[:])
	written := &workv1.HomeFileWritten{Created: missing, PreviousSha256: oldHash, Replaced: n}
	if oldHash != after || missing {
		if err := precondition(p, c.Expected, oldHash, missing); err != nil {
			return nil, err
		}
		if _, err := h.Write(p, content, mode, name); err != nil {
			return nil, Error(p, err)
		}
	}
	st, err := h.Stat(p)
	if err != nil {
		return nil, Error(p, err)
	}
	written.File = Describe(p, st)
	written.File.Sha256 = after
	written.File.UpdatedAt = timestamppb.New(st.ModTime().UTC().Truncate(time.Microsecond)) // as the journal keeps it
	return written, nil
}

// precondition returns HASH_MISMATCH unless the file is as expected: actual is its present hash,
// missing says that there is no file. An empty expectation accepts both.
func precondition(p, expected, actual string, missing bool) error {
	switch {
	case expected == "" || expected == Absent && missing || !missing && expected == actual:
		return nil
	case missing:
		return fault.HashMismatch.Newf("file %q does not exist, expected was %s", p, expected).With("path", p).
			With("sha256", Absent)
	}
	return fault.HashMismatch.Newf("file %q has sha256 %s, expected was %s; read it again", p, actual, expected).
		With("path", p).With("sha256", actual)
}
