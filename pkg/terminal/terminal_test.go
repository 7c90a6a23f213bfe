package terminal

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrintableRemovesWhatControlsATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain, é, 世\n\t": "plain, é, 世\n\t",
		"\x1b[31m":        "\uFFFD[31m",
		"a\u202eb\u2069":  "a\uFFFDb\uFFFD",
		"a\rb\x07\x00":    "a\uFFFDb\uFFFD\uFFFD",
		"👩\u200d🚀":        "👩\u200d🚀",
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
