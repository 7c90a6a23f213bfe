package work

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"
)

// WriteFile writes a whole file, in place of any that is there (SPEC A11). With
// expected_sha256 it refuses a file that has changed.
func (s *Service) WriteFile(ctx context.Context, req *workv1.WriteFileRequest) (*workv1.WriteFileResponse, error) {
	content := req.GetData()
	if req.GetText() != "" {
		if len(content) > 0 {
			return nil, fault.InvalidArgument.New("give text or data, not both").
				WithField("data", "must be empty beside text")
		}
		content = []byte(req.GetText())
	}
	ev, err := s.changeFile(ctx, change{
		method: "WriteFile", agentID: req.GetAgentId(), requestID: req.GetRequestId(), args: req,
		path: req.GetPath(), Change: homes.Change{
			Expected: req.GetExpectedSha256(),
			Content:  func([]byte) ([]byte, int32, error) { return content, 0, nil },
		},
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
		return nil, fault.InvalidArgument.New("old_text and new_text are the same, so nothing would change").
			WithField("new_text", "must differ from old_text")
	}
	if req.GetExpectedSha256() == homes.Absent {
		return nil, fault.Invalid("expected_sha256", homes.Absent, "must be a SHA-256; a file that is absent cannot "+
			"be edited")
	}
	ev, err := s.changeFile(ctx, change{
		method: "EditFile", agentID: req.GetAgentId(), requestID: req.GetRequestId(), args: req,
		path: req.GetPath(), Change: homes.Change{
			Expected: req.GetExpectedSha256(), NeedsFile: true,
			Content: func(old []byte) ([]byte, int32, error) { return homes.Edited(req, old) },
		},
	})
	if err != nil {
		return nil, err
	}
	return &workv1.EditFileResponse{File: ev.GetFile(), Replaced: ev.GetReplaced()}, nil
}

// change is one write of a file of a home.
type change struct {
	method, agentID, requestID string
	args                       proto.Message
	path                       string
	homes.Change
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
	if err := fault.First(fault.RequestID(c.requestID), homes.ValidHash(c.Expected)); err != nil {
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
	ev, err := h.Change(p, c.Change, s.deps.IDs.New(""))
	if err != nil {
		return nil, err
	}
	return s.record(ctx, c, ev)
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
