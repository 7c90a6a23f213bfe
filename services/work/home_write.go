package work

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"
)

// absent is the precondition that there is no file yet.
const absent = "absent"

// WriteFile writes a whole file, in place of any that is there (SPEC A11). With
// expected_sha256 it refuses a file that has changed.
func (s *Service) WriteFile(ctx context.Context, req *workv1.WriteFileRequest) (*workv1.WriteFileResponse, error) {
	content := req.GetData()
	if req.GetText() != "" {
		if len(content) > 0 {
			return nil, fault.InvalidArgument.New("give text or data, not both").WithField("data", "must be empty beside text")
		}
		content = []byte(req.GetText())
	}
	ev, err := s.changeFile(ctx, change{
		method: "WriteFile", agentID: req.GetAgentId(), requestID: req.GetRequestId(), args: req,
		path: req.GetPath(), expected: req.GetExpectedSha256(),
		content: func([]byte) ([]byte, int32, error) { return content, 0, nil },
	})
	if err != nil {
		return nil, err
	}
	return &workv1.WriteFileResponse{File: ev.GetFile(), Created: ev.GetCreated()}, nil
}

// EditFile replaces an exact piece of text in a file (SPEC A11). The text must occur once, or
// replace_all be set.
func (s *Service) EditFile(ctx context.Context, req *workv1.EditFileRequest) (*workv1.EditFileResponse, error) {
	if err := fault.First(
		fault.TextBytes("old_text", req.GetOldText(), maxReadBytes, true),
		fault.TextBytes("new_text", req.GetNewText(), maxReadBytes, false),
	); err != nil {
		return nil, err
	}
	if req.GetOldText() == req.GetNewText() {
		return nil, fault.InvalidArgument.New("old_text and new_text are the same, so nothing would change").WithField("new_text", "must differ from old_text")
	}
	if req.GetExpectedSha256() == absent {
		return nil, fault.Invalid("expected_sha256", absent, "must be a SHA-256; a file that is absent cannot be edited")
	}
	ev, err := s.changeFile(ctx, change{
		method: "EditFile", agentID: req.GetAgentId(), requestID: req.GetRequestId(), args: req,
		path: req.GetPath(), expected: req.GetExpectedSha256(), needsFile: true,
		content: func(old []byte) ([]byte, int32, error) { return replaced(req, old) },
	})
	if err != nil {
		return nil, err
	}
	return &workv1.EditFileResponse{File: ev.GetFile(), Replaced: ev.GetReplaced()}, nil
}

// replaced returns the content of a file after an edit, and the number of replacements.
func replaced(req *workv1.EditFileRequest, old []byte) (content []byte, count int32, err error) {
	n := bytes.Count(old, []byte(req.GetOldText()))
	switch {
	case n == 0:
		return nil, 0, fault.TextNotFound.Newf("old_text does not occur in %q exactly as given; read the file again", req.GetPath()).With("path", req.GetPath())
	case n > 1 && !req.GetReplaceAll():
		return nil, 0, fault.TextNotUnique.Newf("old_text occurs in %q %d times; give more of the text around it, or set replace_all", req.GetPath(), n).
			With("path", req.GetPath()).With("places", fmt.Sprint(n))
	}
	return bytes.ReplaceAll(old, []byte(req.GetOldText()), []byte(req.GetNewText())), int32(n), nil
}

// change is one write of a file of a home.
type change struct {
	method, agentID, requestID string
	args                       proto.Message
	path                       string
	expected                   string // precondition: a SHA-256, absent, or empty
	needsFile                  bool   // the file must exist, and content gets what is in it
	// content returns the new content and the number of replacements. old is nil unless
	// needsFile is set.
	content func(old []byte) (content []byte, replaced int32, err error)
}

// errNotDone means that a request with this id was not executed before.
var errNotDone = errors.New("work: this request was not executed before")

// changeFile writes a file and then its event, one writer of a file at a time. The file is
// on disk first, so that no event reports what does not exist. If the process dies in
// between, the file is written and no event says so: the repeated WriteFile finds its own
// content and writes the event; the repeated EditFile does not find its text and is
// refused.
func (s *Service) changeFile(ctx context.Context, c change) (*workv1.HomeFileWritten, error) {
	p, err := homes.Path("path", c.path)
	if err != nil {
		return nil, err
	}
	if err := fault.First(fault.RequestID(c.requestID), validHash(c.expected)); err != nil {
		return nil, err
	}
	if p == "." {
		return nil, homes.NotAFile(c.path, "it is the home itself")
	}
	actor := rpc.ActorFrom(ctx)
	h, err := s.openHome(ctx, c.agentID, true)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	defer s.files.Lock(fileKey{plane.KeyOf(actor.Namespace, c.agentID), p})()
	if c.requestID != "" {
		if ev, err := s.record(ctx, c, nil); !errors.Is(err, errNotDone) {
			return ev, err
		}
	}
	ev, err := s.write(h, p, c)
	if err != nil {
		return nil, err
	}
	return s.record(ctx, c, ev)
}

// validHash checks the form of expected_sha256: a SHA-256 in lower-case hex, absent, or empty.
func validHash(expected string) error {
	if expected == "" || expected == absent {
		return nil
	}
	if raw, err := hex.DecodeString(expected); err != nil || len(raw) != sha256.Size || strings.ToLower(expected) != expected {
		return fault.Invalid("expected_sha256", expected, `must be a SHA-256 in lower-case hex, "absent", or empty`)
	}
	return nil
}

// write writes the new content if the precondition holds, and returns the event of the change.
// If the file has that content already, it writes nothing and does not check the precondition:
// the request may be the repetition of one whose event was lost.
func (s *Service) write(h *homes.Home, p string, c change) (*workv1.HomeFileWritten, error) {
	before, mode, err := h.Hash(p)
	missing := errors.Is(err, fault.NotFound)
	switch {
	case missing && c.needsFile, err != nil && !missing:
		return nil, err
	case missing:
		mode = 0o640
	}
	var old []byte
	if c.needsFile {
		if old, err = h.ReadAll(p); err != nil {
			return nil, err
		}
	}
	content, n, err := c.content(old)
	if err != nil {
		return nil, err
	}
	if len(content) > homes.MaxFileBytes {
		return nil, fault.TooLarge.Newf("file %q would have %d bytes; at most %d are written through the API", p, len(content), homes.MaxFileBytes).
			With("path", p).With("limit", fmt.Sprint(homes.MaxFileBytes)).With("value", fmt.Sprint(len(content)))
	}
	sum := sha256.Sum256(content)
	after := hex.EncodeToString(sum[:])
	written := &workv1.HomeFileWritten{Created: missing, PreviousSha256: before, Replaced: n}
	if before != after || missing {
		if err := precondition(p, c.expected, before, missing); err != nil {
			return nil, err
		}
		if _, err := h.Write(p, content, mode, s.deps.IDs.New("")); err != nil {
			return nil, homes.Error(p, err)
		}
	}
	st, err := h.Stat(p)
	if err != nil {
		return nil, homes.Error(p, err)
	}
	written.File = homes.Describe(p, st)
	written.File.Sha256 = after
	written.File.UpdatedAt = timestamppb.New(st.ModTime().UTC().Truncate(time.Microsecond)) // as the journal keeps it
	return written, nil
}

// precondition returns HASH_MISMATCH unless the file is as expected: is is its present hash,
// missing that there is no file. An empty expectation accepts both.
func precondition(p, expected, is string, missing bool) error {
	switch {
	case expected == "" || expected == absent && missing || !missing && expected == is:
		return nil
	case missing:
		return fault.HashMismatch.Newf("file %q does not exist, expected was %s", p, expected).With("path", p).With("sha256", absent)
	}
	return fault.HashMismatch.Newf("file %q has sha256 %s, expected was %s; read it again", p, is, expected).With("path", p).With("sha256", is)
}

// record writes the event of a change into the journal, with the request's id. With a nil
// event it only returns the event of an earlier execution of the request, or errNotDone.
func (s *Service) record(ctx context.Context, c change, ev *workv1.HomeFileWritten) (*workv1.HomeFileWritten, error) {
	return plane.Do(ctx, s.engine, plane.Command[*State, *workv1.HomeFileWritten]{
		Method: c.method, AgentID: c.agentID, RequestID: c.requestID, Args: c.args,
		Decide: func(*State, journal.Env) (journal.Decision[*workv1.HomeFileWritten], error) {
			var d journal.Decision[*workv1.HomeFileWritten]
			if ev == nil {
				return d, errNotDone
			}
			d.Events = []*journal.Event{{AgentID: c.agentID, Payload: ev}}
			return d, nil
		},
		Answer: journal.AnswerOf(func(p *workv1.HomeFileWritten) *workv1.HomeFileWritten {
			return p
		}),
	})
}
