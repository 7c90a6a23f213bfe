package task

import (
	"context"
	"fmt"
	"time"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/utf8cut"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// Limits of GetTaskOutput: bytes of one response, and how long it may wait.
const (
	DefaultOutputBytes = 32_000
	MaxOutputBytes     = 1_000_000
	DefaultBlock       = 30 * time.Second
	MaxBlock           = 55 * time.Second
)

// Values of GetTaskOutputResponse.retrieval_status.
const (
	retrievalSuccess  = "success"   // there is text, or the task has ended
	retrievalTimeout  = "timeout"   // the call waited and there is still neither
	retrievalNotReady = "not_ready" // there is neither, and the call was not to wait
)

// GetTaskOutput reads a part of the output. If block is set, it waits, at most the timeout,
// until there is output behind the offset or the task has ended, and for a child until it has
// ended (SPEC T3). A character that is not complete yet is left for the next part, so that the
// joined parts are the text.
func (s *Service) GetTaskOutput(ctx context.Context, req *taskv1.GetTaskOutputRequest) (*taskv1.GetTaskOutputResponse,
	error,
) {
	actor, err := s.admitRead(ctx, req)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetMaxBytes())
	switch {
	case limit == 0:
		limit = DefaultOutputBytes
	case limit < 0 || limit > MaxOutputBytes:
		return nil, fault.LimitExceeded.Newf("max_bytes is %d; it must be 0 (default) to %d", limit, MaxOutputBytes).
			WithField("max_bytes", "must be 0 to 1000000")
	}
	block, err := rules.DurationIn("timeout", req.GetTimeout(), DefaultBlock, 0, MaxBlock)
	if err != nil {
		return nil, err
	}
	changes := s.watches.Subscribe(req.GetTaskId())
	defer changes.Close()
	until := s.clk.Now().Add(block)
	timer := s.clk.TimerAt(until)
	defer timer.Stop()
	offset := req.GetOffset()
	for timedOut := false; ; {
		timedOut = timedOut || !s.clk.Now().Before(until) // then the task is read once more: it may have ended just now
		// The task is read first: all output of an ended task is stored before its end.
		t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId())
		if err != nil {
			return nil, err
		}
		piece, err := s.pieceOf(ctx, actor.Namespace, t, offset, limit)
		if err != nil {
			return nil, err
		}
		resp := outputResponse(t, piece, offset)
		resp.Task = s.present(actor.Namespace, t)
		if model.IsChild(t) && !model.Terminal(t.GetState()) {
			resp.NextOffset, resp.TotalBytes = 0, 0 // the result will begin at 0
		}
		if resp.GetText() != "" && !model.IsChild(t) || model.Terminal(t.GetState()) {
			resp.RetrievalStatus = retrievalSuccess
			return resp, nil
		}
		switch {
		case !req.GetBlock():
			resp.RetrievalStatus = retrievalNotReady
			return resp, nil
		case timedOut:
			resp.RetrievalStatus = retrievalTimeout
			return resp, nil
		}
		if offset < 0 { // a negative offset counts from the end at the time of the call
			offset = piece.Start
		}
		select {
		case <-changes.C():
		case <-timer.C():
			timedOut = true
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-s.watches.Stopped():
			return nil, fault.NotReady.New("the task service is stopping; ask again")
		}
	}
}

// pieceOf returns at most limit bytes of the output of a task from an offset on, which counts
// from the end if it is negative. A child has no output: while it runs, the piece is a
// description of its state, whatever the offset, and after that a part of its result.
func (s *Service) pieceOf(ctx context.Context, ns string, t *taskv1.Task, offset int64, limit int) (output.Piece,
	error,
) {
	if !model.IsChild(t) {
		p, err := s.output.Read(ctx, ns, t.GetTaskId(), offset, limit)
		if err == nil && p.End == 0 && t.GetOutputBytes() > 0 && model.Terminal(t.GetState()) {
			err = s.gone(ctx, ns, t)
		}
		return p, err
	}
	text, err := s.childText(ctx, t)
	if err != nil {
		return output.Piece{}, err
	}
	from := int64(0)
	if model.Terminal(t.GetState()) {
		if from = offset; offset < 0 {
			from = max(0, int64(len(text))+offset)
		}
	}
	from = min(from, int64(len(text)))
	rest := text[from:min(int64(len(text)), from+int64(limit))]
	p := output.Piece{Start: from, End: int64(len(text))}
	if rest != "" {
		p.Chunks = []*taskv1.OutputChunk{{
			Stream: taskv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: from,
			Data: []byte(rest),
		}}
	}
	return p, nil
}

// gone returns OUTPUT_REMOVED for an ended command all of whose output was removed, because of its age or because its
// agent was deleted. It returns nil for output that is missing for another reason, which is damage of the stream.
func (s *Service) gone(ctx context.Context, ns string, t *taskv1.Task) error {
	why := "its agent was deleted"
	// The output may all have been written when the command began.
	if s.cfg.KeepOutput > 0 && t.GetStartedAt() != nil && s.clk.Now().Sub(t.GetStartedAt().AsTime()) >
		s.cfg.KeepOutput {
		why = fmt.Sprintf("output is kept for %d days after it was written", s.cfg.KeepOutput/(24*time.Hour))
	} else {
		deleted, _, err := plane.View(ctx, s.engine, t.GetAgentId(), func(st *model.State) (bool, error) {
			o := plane.KeyOf(ns, t.GetAgentId())
			return st.Deleted[o] && !st.Ended[o], nil
		})
		if err != nil || !deleted {
			return err
		}
	}
	return fault.OutputRemoved.Newf("the output of task %q was removed: %s; GetTask shows how the command ended",
		t.GetTaskId(), why).With("task_id", t.GetTaskId())
}

// outputResponse returns the response with a piece of the output of t, without its status.
// asked is the offset of the request, which may be negative.
func outputResponse(t *taskv1.Task, p output.Piece, asked int64) *taskv1.GetTaskOutputResponse {
	b, nextOffset := output.Join(p)
	resp := &taskv1.GetTaskOutputResponse{Offset: p.Start, TotalBytes: p.End}
	if asked < 0 && p.Start > 0 {
		skip := output.LeadingBytes(b)
		b, resp.Offset = b[skip:], p.Start+int64(skip)
	}
	// An incomplete character at the end is left for the next part, with two exceptions: at the
	// end of the output of a task that has ended, because nothing will complete it, and if the
	// limit is too small for the whole character, because the reader would not advance.
	if ended := model.Terminal(t.GetState()) && nextOffset >= p.End; !ended {
		if open := utf8cut.Partial(b); open < len(b) || nextOffset >= p.End {
			b, nextOffset = b[:len(b)-open], nextOffset-int64(open)
		}
	}
	resp.Text = output.ToText(b)
	resp.NextOffset = nextOffset
	resp.Truncated = p.Oldest > 0 && (asked < p.Oldest || asked < 0 && p.Start == p.Oldest)
	return resp
}
