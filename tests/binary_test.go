package tests

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/tests/attack"
	"quartet/tests/proc"
)

// built is the binary that all tests run: linking it takes seconds.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func binary(t *testing.T) string {
	t.Helper()
	proc.Long(t)
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "quartet-tests-"); built.err == nil { //nolint:usetesting // it outlives the test that builds it
			built.path, built.err = proc.Build(built.dir, "quartet/cmd/quartet", "quartet")
		}
	})
	require.NoError(t, built.err)
	return built.path
}

func TestMain(m *testing.M) {
	attack.Main()
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}
