package task

import (
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/utf8cut"
	"quartet/services/task/model"
	"quartet/services/task/output"
)

// FollowTaskOutput streams output from an offset until the task ended; the last message
// has the task (SPEC T3). Chunks have the raw bytes. Where output was dropped, there
// is a gap between their offsets.
func (s *Service) FollowTaskOutput(req *taskv1.FollowTaskOutputRequest,
	stream grpc.ServerStreamingServer[taskv1.FollowTaskOutputResponse],
) error {
	ctx := stream.Context()
	actor, err := s.admitRead(ctx, req)
	if err != nil {
		return err
	}
	changes := s.watches.Subscribe(req.GetTaskId())
	defer changes.Close()
	for offset := req.GetOffset(); ; {
		// The task is read first: all output of an ended task is stored before its end.
		t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId())
		if err != nil {
			return err
		}
		piece := output.Piece{}
		if !model.IsChild(t) || model.Terminal(t.GetState()) {
			if piece, err = s.pieceOf(ctx, actor.Namespace, t, offset, output.MaxChunk); err != nil {
				return err
			}
		}
		if offset < 0 {
			offset = piece.Start
		}
		for i, c := range piece.Chunks {
			// An incomplete character at the end is left for the next read.
			if open := utf8cut.Partial(c.GetData()); i == len(piece.Chunks)-1 && open < len(c.GetData()) {
				c = output.Cut(c, c.GetOffset(), len(c.GetData())-open)
			}
			if err := stream.Send(&taskv1.FollowTaskOutputResponse{Chunk: c}); err != nil {
				return err
			}
			offset = output.ChunkEnd(c)
		}
		if len(piece.Chunks) > 0 {
			continue
		}
		if model.Terminal(t.GetState()) {
			return stream.Send(&taskv1.FollowTaskOutputResponse{Ended: model.WithDerived(t)})
		}
		select {
		case <-changes.C():
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-s.watches.Stopped():
			return fault.NotReady.New("the task service is stopping; follow again from the next offset")
		}
	}
}
