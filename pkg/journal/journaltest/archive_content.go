package journaltest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// frameMagic begins what zstd compressed.
var frameMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// ArchiveContent returns the content of all files below a directory, as stored and decompressed, so that a test can
// search it for a text. A file that is removed meanwhile is left out.
func ArchiveContent(t testing.TB, dir string) (all []byte) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return present(err)
		}
		b, err := os.ReadFile(path) //nolint:gosec // a directory of the test
		all = append(append(all, b...), Decompressed(b)...)
		return present(err)
	}))
	return all
}

func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Decompressed returns what the zstd frames in b hold, one after the other.
func Decompressed(b []byte) (all []byte) {
	z, err := zstd.NewReader(nil)
	if err != nil { // it has no option that may be bad
		panic(err)
	}
	defer z.Close()
	for i := bytes.Index(b, frameMagic); i >= 0; {
		plain, _ := z.DecodeAll(b[i:], nil) // what it could decode before something else follows
		all = append(all, plain...)
		next := bytes.Index(b[i+1:], frameMagic)
		if i += 1 + next; next < 0 {
			break
		}
	}
	return all
}
