package terminal

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPrintableRemovesWhatControlsATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain, é, 世\n\t": "plain, é, 世\n\t",
		"\x1b[31m":        "\uFFFD[31m",
		"a\u202eb\u2069":  "a\uFFFDb\uFFFD",
		"a\rb\x07\x00":    "a\uFFFDb\uFFFD\uFFFD",
		"👩\u200d🚀":        "👩\u200d🚀",

		"10\u00a0000\u202f€\u3000\u2003": "10\u00a0000\u202f€\u3000\u2003", // blanks
		"a\u2028b\u2029c\u0085":          "a\uFFFDb\uFFFDc\uFFFD",          // ends of lines
		"\ue000\u0378\xff":               "\uFFFD\uFFFD\uFFFD",             // private, not assigned, not UTF-8
	} {
		require.Equal(t, want, Printable(in), "%q", in)
	}
}

func TestPaint(t *testing.T) {
	require.Equal(t, "\x1b[31mno\x1b[0m", Paint(Red, "no"))
	require.Empty(t, Paint(Red, ""))
}

func TestOnlyATerminalGetsColours(t *testing.T) {
	require.False(t, WantsColour(&bytes.Buffer{}))
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	require.False(t, WantsColour(f))
	require.False(t, IsTerminal(f))
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{
		0: "0 entries", 1: "1 entry", 2: "2 entries", -1: "-1 entries",
		1000: "1000 entries",
	} {
		require.Equal(t, want, Count(n, "entry", "entries"))
	}
	require.Equal(t, "1 second", Count(time.Minute/60/time.Second, "second", "seconds"))
}
