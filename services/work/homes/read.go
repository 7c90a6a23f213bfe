package homes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
)

// maxHashedBytes is the size of the largest file of which Read returns a hash.
const maxHashedBytes = 4 << 20

// Read describes a file and returns at most limit bytes of it from an offset on, as text if they are UTF-8 without
// NUL. If the file goes on behind them, they end with a whole character, unless they are only a part of one.
func (h *Home) Read(path string, offset, limit int64) (*workv1.ReadFileResponse, error) {
	f, st, err := h.File(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	resp := &workv1.ReadFileResponse{File: Describe(path, st)}
	if st.Size() <= maxHashedBytes {
		sum := sha256.New()
		if _, err := io.Copy(sum, io.LimitReader(f, maxHashedBytes)); err != nil {
			return nil, Error(path, err)
		}
		resp.File.Sha256 = hex.EncodeToString(sum.Sum(nil))
	}
	piece := make([]byte, limit)
	n, err := f.ReadAt(piece, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, Error(path, err)
	}
	piece = piece[:n]
	more := offset+int64(n) < st.Size()
	if complete := n - utf8cut.Partial(piece); more && complete > 0 {
		piece = piece[:complete] // the next read begins with the character that was cut
	}
	if more {
		resp.NextOffset = offset + int64(len(piece))
	}
	if IsText(piece) {
		resp.Text = string(piece)
	} else {
		resp.Data = piece
	}
	return resp, nil
}
