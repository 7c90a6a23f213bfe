package work

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// A file of 100 MB is hashed, and its beginning shown, in a fixed amount of memory.
func TestW3_AHugePlanTakesLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	f := must.Value(os.Create(r.planPath(itemID)))(t)
	sum := sha256.New()
	block := []byte(strings.Repeat("世界", 1<<20/6))
	const blocks = 100
	for range blocks {
		must.Value(io.MultiWriter(f, sum).Write(block))(t)
	}
	require.NoError(t, f.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := r.get(itemID).GetPlanArtifact()
	runtime.ReadMemStats(&after)
	require.Empty(t, a.GetProblem())
	require.EqualValues(t, blocks*len(block), a.GetBytes())
	require.Equal(t, hex.EncodeToString(sum.Sum(nil)), a.GetSha256())
	require.Equal(t, strings.Repeat("世界", 800), a.GetPreview())
	require.False(t, a.GetPreviewComplete())
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<20))
}
