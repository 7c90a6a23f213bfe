package journaltest

import (
	"testing"

	"quartet/pkg/resident"
)

// NewFile returns a file for what a state evicts. It is closed when the test ends, if it is not by then.
func NewFile(t testing.TB) *resident.File {
	t.Helper()
	f, err := resident.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
