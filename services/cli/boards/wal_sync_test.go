package boards

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// logOf is a server that has one line of a log.
type logOf struct {
	boardv1.BoardServiceClient
	line string
}

func (l logOf) ReadWal(context.Context, *boardv1.ReadWalRequest, ...grpc.CallOption) (*boardv1.ReadWalResponse, error) {
	return &boardv1.ReadWalResponse{Lines: []byte(l.line)}, nil
}

// A copy of as many lines as the log is compared by the last one, also if the log does not have that line any more.
func TestCompareEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build.wal")
	require.NoError(t, os.WriteFile(path, []byte("one\ntwo\n"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	for line, differs := range map[string]bool{"two\n": false, "TWO\n": true, "": true} {
		w := &walCopies{c: logOf{line: line}, session: "keeper", compared: map[string]bool{}}
		err := w.compareEnds(t.Context(), &boardv1.Wal{WalName: "build"}, 2, f, int64(len("one\ntwo\n")))
		require.Equal(t, differs, err != nil, line)
		require.Equal(t, !differs, w.compared["build"], line)
	}
}
