package app

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneProcessorMoreUnlessAnOperatorSaysHowMany(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	processors = sync.Once{}
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "2")
	MoreProcessors()
	require.Equal(t, before, runtime.GOMAXPROCS(0))
	t.Setenv("GOMAXPROCS", "")
	MoreProcessors()
	MoreProcessors()
	require.Equal(t, before+1, runtime.GOMAXPROCS(0))
}
