package work

import (
	"context"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/work/homes"
)

// Bytes of one ReadFile.
const (
	defaultReadBytes = 64 << 10
	maxReadBytes     = 1 << 20
)

// ReadFile reads a part of a file of an agent's home (SPEC A11).
func (s *Service) ReadFile(ctx context.Context, req *workv1.ReadFileRequest) (*workv1.ReadFileResponse, error) {
	p, err := homes.Path("path", req.GetPath())
	if err != nil {
		return nil, err
	}
	limit := int64(req.GetLimit())
	switch {
	case req.GetOffset() < 0:
		return nil, fault.LimitExceeded.Newf("offset is %d; it must not be negative", req.GetOffset()).
			WithField("offset", "must be 0 or more")
	case limit < 0 || limit > maxReadBytes:
		return nil, fault.LimitExceeded.Newf("limit is %d; it must be 0 (64 KiB) to %d bytes", limit, maxReadBytes).
			WithField("limit", "must be 0 to 1048576")
	case limit == 0:
		limit = defaultReadBytes
	}
	h, err := s.openHome(ctx, req.GetAgentId(), false)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.Read(p, req.GetOffset(), limit)
}
