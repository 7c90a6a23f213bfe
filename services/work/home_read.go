package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
	"quartet/services/work/homes"
)

// Bytes of one ReadFile.
const (
	defaultReadBytes = 64 << 10
	maxReadBytes     = 1 << 20
	maxHashedBytes   = 4 << 20 // of a larger file ReadFile returns no hash
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
		return nil, fault.LimitExceeded.Newf("offset is %d; it must not be negative", req.GetOffset()).WithField("offset", "must be 0 or more")
	case limit < 0 || limit > maxReadBytes:
		return nil, fault.LimitExceeded.Newf("limit is %d; it must be 0 (64 KiB) to %d bytes", limit, maxReadBytes).WithField("limit", "must be 0 to 1048576")
	case limit == 0:
		limit = defaultReadBytes
	}
	h, err := s.openHome(ctx, req.GetAgentId(), false)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	f, st, err := h.File(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	resp := &workv1.ReadFileResponse{File: homes.Describe(p, st)}
	if st.Size() <= maxHashedBytes {
		sum := sha256.New()
		if _, err := io.Copy(sum, io.LimitReader(f, maxHashedBytes)); err != nil {
			return nil, homes.Error(p, err)
		}
		resp.File.Sha256 = hex.EncodeToString(sum.Sum(nil))
	}
	piece := make([]byte, limit)
	n, err := f.ReadAt(piece, req.GetOffset())
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, homes.Error(p, err)
	}
	piece = piece[:n]
	more := req.GetOffset()+int64(n) < st.Size()
	if complete := n - utf8cut.Partial(piece); more && complete > 0 {
		piece = piece[:complete] // the next read begins with the character that was cut
	}
	if more {
		resp.NextOffset = req.GetOffset() + int64(len(piece))
	}
	if homes.IsText(piece) {
		resp.Text = string(piece)
	} else {
		resp.Data = piece
	}
	return resp, nil
}
