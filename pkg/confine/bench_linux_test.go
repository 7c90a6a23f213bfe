package confine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// BenchmarkCommand compares a command in an open sandbox with one that is not confined, and with what opening a
// sandbox costs.
func BenchmarkCommand(b *testing.B) {
	null := must.Value(os.OpenFile(os.DevNull, os.O_RDWR, 0))(b)
	b.Cleanup(func() { _ = null.Close() })
	b.Run("unconfined", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.CommandContext(b.Context(), "/bin/true").Run())
		}
	})
	open := func(b *testing.B, n confine.Network) *confine.Sandbox {
		dir := must.Value(filepath.EvalSymlinks(b.TempDir()))(b)
		s := must.Value(confine.Open(confine.Policy{Dir: filepath.Join(dir, "s"), Writable: []string{dir}, Network: n},
			[]string{"/proc/self/exe", helperArgument}, nil))(b)
		return s
	}
	b.Run("confined", func(b *testing.B) {
		s := open(b, confine.NetworkOutside)
		for b.Loop() {
			p, err := s.Start(confine.Spec{Argv: []string{"/bin/true"}, Dir: "/", Files: [3]*os.File{null, null, null}})
			require.NoError(b, err)
			require.Zero(b, p.Wait())
		}
		require.NoError(b, s.Close())
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, open(b, confine.NetworkOutside).Close())
		}
	})
}
