package output

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/terminal"
)

func TestWrapFitsIntoColumnsAndLines(t *testing.T) {
	require.Equal(t, []string{"a b", "c d"}, Wrap("a b\n c d", 3, 3))
	require.Equal(t, []string{"abcde", "fgh"}, Wrap("abcdefgh", 5, 3))
	require.Equal(t, []string{"one two", "three …"}, Wrap("one two three four five", 7, 2))
	require.Empty(t, Wrap(" ", 5, 3))
	for _, s := range []string{strings.Repeat("語 ", 100), strings.Repeat("x", 500), "リリース 1.4 is published"} {
		for columns := 4; columns < 40; columns++ {
			lines := Wrap(s, columns, 3)
			require.LessOrEqual(t, len(lines), 3)
			for _, l := range lines {
				require.LessOrEqual(t, Width(l), columns, "%q", l)
			}
		}
	}
}

func TestShortenedTextIsPrintableAndFits(t *testing.T) {
	require.Equal(t, "a b", Shorten("a\n b", 10))
	require.Equal(t, "リリ…", Shorten("リリース", 5))
	require.LessOrEqual(t, Width(Shorten(strings.Repeat("語x", 100), 40)), 40)
	require.Equal(t, "\uFFFD[31m", terminal.Printable("\x1b[31m"))
	require.Equal(t, "a\uFFFDb", terminal.Printable("a\u202eb"))
	require.Equal(t, 1, Width("e\u0301"))
}

func TestColumnsOfAPipe(t *testing.T) {
	t.Setenv("COLUMNS", "72")
	require.Equal(t, 72, New(&bytes.Buffer{}).Columns())
	t.Setenv("COLUMNS", "7")
	require.Equal(t, 60, New(&bytes.Buffer{}).Columns(), "the minimum")
	t.Setenv("COLUMNS", "")
	require.Equal(t, 100, New(&bytes.Buffer{}).Columns(), "the default")
}

func TestColoursAreForTerminals(t *testing.T) {
	require.False(t, terminal.WantsColour(&bytes.Buffer{}))
	require.Equal(t, "x", New(&bytes.Buffer{}).Paint(terminal.Red, "x"))
	require.Equal(t, "\x1b[31mx\x1b[0m", NewColoured(&bytes.Buffer{}).Paint(terminal.Red, "x"))
	t.Setenv("NO_COLOR", "1")
	require.False(t, terminal.WantsColour(os.Stdout))
}

// failingWriter refuses every write.
type failingWriter struct{ writes int }

func (w *failingWriter) Write([]byte) (int, error) {
	w.writes++
	return 0, os.ErrClosed
}

func TestPrinterKeepsTheFirstError(t *testing.T) {
	w := &failingWriter{}
	p := New(w)
	p.Printf("a")
	p.Table("none", []string{"A"}, [][]string{{"a"}})
	require.ErrorIs(t, p.Err(), os.ErrClosed)
	require.Equal(t, 1, w.writes, "nothing is written after an error")
}

func TestTablesAndFieldsAlign(t *testing.T) {
	var out bytes.Buffer
	p := New(&out)
	p.Table("none", []string{"NAME", "VALUE"}, [][]string{{"リ", "1"}, {"long name", "2"}})
	p.Table("none", []string{"NAME"}, nil)
	p.Fields("a", "1\n2", "empty", "", "name", "3")
	p.NextPage("")
	p.NextPage("abc")
	require.NoError(t, p.Err())
	require.Equal(t, `NAME       VALUE
リ         1
long name  2
none
a     1
      2
name  3

more: --page-token abc
`, out.String())
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB",
		3 << 40: "3.0 TiB", 1 << 60: "1048576.0 TiB",
	} {
		require.Equal(t, want, Bytes(n))
	}
}

// Columns of free text share the width that the others leave; the narrow ones get what they need, and nothing else is
// cut.
func TestTablesFitTheirWidth(t *testing.T) {
	long := strings.Repeat("word ", 60)
	rows := [][]string{
		{"wi_01h455vb4pex5vsknk084sn02q", Flexible(long), "ready", Flexible("short")},
		{"wi_2", Flexible("x"), "draft", Flexible("")},
	}
	for _, columns := range []int{60, 80, 120, 200, 500} {
		var b bytes.Buffer
		New(&b).WithColumns(columns).Table("", []string{"ITEM", "OBJECTIVE", "PLAN", "BLOCKED BY"}, rows)
		require.NotContains(t, b.String(), flexible)
		require.Contains(t, b.String(), "wi_01h455vb4pex5vsknk084sn02q")
		require.Contains(t, b.String(), "short", "what is short is not cut")
		widest := 0
		for line := range strings.Lines(b.String()) {
			widest = max(widest, Width(strings.TrimRight(line, "\n")))
		}
		if columns >= 80 {
			require.LessOrEqual(t, widest, columns)
		}
		if columns >= 120 && columns < 300 {
			require.Greater(t, widest, columns-10, "the width that there is, is used")
		}
	}
	t.Setenv("COLUMNS", "")
	var b bytes.Buffer
	New(&b).Table("", []string{"A", "B"}, [][]string{{"x", Flexible(long)}})
	require.Contains(t, b.String(), "…", "a pipe has no width; a column has 60")
}
