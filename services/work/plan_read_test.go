package work

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An edit in place that keeps the size and gives the file its old time back, as
// some sync tools do, is seen all the same.
func TestW3_AnEditInPlaceIsSeenThoughSizeAndTimeAreTheSame(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	old := time.Now().Add(-time.Hour)
	r.writePlan(itemID, "AAAA")
	require.NoError(t, os.Chtimes(r.planPath(itemID), old, old))
	require.Equal(t, "AAAA", r.get(itemID).GetPlanArtifact().GetPreview())
	// The look is kept once the file was left alone for a moment.
	eventually(t, func() bool {
		st, err := os.Lstat(r.planPath(itemID))
		return err == nil && settled(st)
	})
	require.Equal(t, "AAAA", r.get(itemID).GetPlanArtifact().GetPreview())

	r.writePlan(itemID, "BBBB")
	require.NoError(t, os.Chtimes(r.planPath(itemID), old, old))
	require.Equal(t, "BBBB", r.get(itemID).GetPlanArtifact().GetPreview())
}

// A file of 100 MB is hashed, and its beginning shown, in a fixed amount of memory.
func TestW3_AHugePlanTakesLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	f, err := os.Create(r.planPath(itemID))
	require.NoError(t, err)
	sum := sha256.New()
	block := []byte(strings.Repeat("世界", 1<<20/6))
	const blocks = 100
	for range blocks {
		_, err := io.MultiWriter(f, sum).Write(block)
		require.NoError(t, err)
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

// What is larger still is not read whole; what it is is said.
func TestW3_APlanBeyondTheLimitIsShownAndNotHashed(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	r.writePlan(itemID, strings.Repeat("é", 5000))
	require.NoError(t, os.Truncate(r.planPath(itemID), maxPlanBytes+1))
	a := r.get(itemID).GetPlanArtifact()
	require.Equal(t, "too_large", a.GetProblem())
	require.EqualValues(t, maxPlanBytes+1, a.GetBytes())
	require.Empty(t, a.GetSha256())
	require.Equal(t, strings.Repeat("é", 1600), a.GetPreview())
	require.False(t, a.GetPreviewComplete())
}

// Text is text however it is cut into reads.
func TestW3_TextIsKnownAcrossReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		if rapid.Bool().Draw(t, "text") {
			body = []byte(rapid.StringOf(rapid.RuneFrom([]rune("aé世🙂\x00"))).Draw(t, "runes"))
		} else {
			body = rapid.SliceOf(rapid.SampledFrom([]byte{'a', 0xc3, 0xa9, 0xe4, 0xb8, 0x96, 0xf0, 0x9f, 0x99, 0x82, 0xff, 0})).Draw(t, "bytes")
		}
		sum := textSum{sum: sha256.New()}
		for rest := body; len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 5)).Draw(t, "read")
			wrote, err := sum.Write(rest[:n])
			require.NoError(t, err)
			require.Equal(t, n, wrote)
			rest = rest[n:]
		}
		text := utf8.Valid(body) && bytes.IndexByte(body, 0) < 0
		require.Equal(t, text, !sum.binary && len(sum.rest) == 0, "%q", body)
		if text {
			require.Equal(t, string(body), string(sum.head))
		}
		want := sha256.Sum256(body)
		require.Equal(t, want[:], sum.sum.Sum(nil))
	})
}

// A pipe that takes the file's place between the look and the opening neither
// holds the reader up nor is read.
func TestW3_AFileThatIsExchangedIsNotWaitedFor(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	r.writePlan(itemID, "text")
	st, err := os.Lstat(r.planPath(itemID))
	require.NoError(t, err)
	require.NoError(t, os.Remove(r.planPath(itemID)))
	require.NoError(t, syscall.Mkfifo(r.planPath(itemID), 0o600))
	h, err := r.service.plans.home("acme", "keeper", false)
	require.NoError(t, err)
	defer h.close()
	require.Equal(t, "unreadable", h.read(planName(itemID), st).GetProblem())
}
