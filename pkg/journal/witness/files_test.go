package witness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
)

func open(t *testing.T, dir string) *Files {
	t.Helper()
	return must.Value(Open(dir, zap.NewNop()))(t)
}

func last(t *testing.T, dir string) framelog.End {
	t.Helper()
	f := open(t, dir)
	end := must.Value(f.Of("work", 3).Last())(t)
	require.NoError(t, f.Close())
	return end
}

// numbered returns an end that no other has, with the longest numbers.
func numbered(i int) framelog.End {
	e := framelog.End{Seq: 1<<64 - 1 - uint64(i), WalSeq: 1<<64 - 1, Incarnation: 1<<64 - 1, Segment: 1<<64 - 1}
	e.Hash[0] = byte(i)
	return e
}

func TestTheNewestRecordIsRemembered(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "witness")
	require.Zero(t, last(t, dir))
	f := open(t, dir)
	for i := range 100 {
		f.Of("work", 3).Record(numbered(i))
		require.Equal(t, numbered(i), must.Value(f.Of("work", 3).Last())(t))
		if i%10 == 0 { // as another process sees the files after this one is killed
			require.Equal(t, numbered(i), last(t, dir))
		}
	}
	require.Zero(t, must.Value(f.Of("work", 2).Last())(t))
	require.NoError(t, f.Close())
	require.Equal(t, numbered(99), last(t, dir))
}

// TestTheHolderChanges: two processes of a machine have the directory, and hold the partition by turns.
func TestTheHolderChanges(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	for i := range 10 {
		f := []*Files{a, b}[i%2]
		if i > 0 {
			require.Equal(t, numbered(i-1), must.Value(f.Of("work", 3).Last())(t))
		}
		f.Of("work", 3).Record(numbered(i))
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestOneOfTheSlotsMayBeDamaged: a write that was cut off leaves the record before it, wherever it was cut; a file
// without a record that can be read is an error.
func TestOneOfTheSlotsMayBeDamaged(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	for i := range 5 {
		f.Of("work", 3).Record(numbered(i))
	}
	require.NoError(t, f.Close())
	path := filepath.Join(dir, "work-3")
	whole := must.Value(os.ReadFile(path))(t)
	require.Len(t, whole, 2*slotBytes)
	newest := slotBytes * (5 % 2)
	for at := newest; at < newest+150; at++ {
		bad := append([]byte(nil), whole...)
		bad[at] ^= 1
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		require.Equal(t, numbered(3), last(t, dir), at)
	}
	for _, b := range [][]byte{whole[:10], whole[:100], []byte("x")} {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		f := open(t, dir)
		must.Fail(f.Of("work", 3).Last())(t, "work-3 cannot be read")
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.WriteFile(path, make([]byte, 2*slotBytes), 0o600))
	require.Zero(t, last(t, dir), "a file that was created and not written")
}
