package utf8cut

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestBytesCutsBetweenCharacters(t *testing.T) {
	const s = "aé€😀" // 1, 2, 3 and 4 bytes
	want := map[int]string{-1: "", 0: "", 1: "a", 2: "a", 3: "aé", 5: "aé", 6: "aé€", 9: "aé€", 10: s, 11: s}
	for n, prefix := range want {
		require.Equal(t, prefix, Bytes(s, n), "%d bytes", n)
	}
}

func TestCharsCountsCharacters(t *testing.T) {
	const s = "aé€😀"
	for n, prefix := range map[int]string{-1: "", 0: "", 1: "a", 2: "aé", 3: "aé€", 4: s, 5: s} {
		require.Equal(t, prefix, Chars(s, n), "%d characters", n)
	}
	require.Equal(t, "\xff\xfe", Chars("\xff\xfe\xfd", 2))
}

func TestPartialFindsAnIncompleteCharacterAtTheEnd(t *testing.T) {
	for _, c := range []string{"é", "€", "😀"} {
		for n := 1; n < len(c); n++ {
			require.Equal(t, n, Partial([]byte("a"+c[:n])), "%d bytes of %s", n, c)
			require.Equal(t, n, Partial([]byte(c[:n])), "%d bytes of %s alone", n, c)
		}
		require.Zero(t, Partial([]byte(c)))
	}
	require.Zero(t, Partial(nil))
	require.Zero(t, Partial([]byte("abc")))
	require.Zero(t, Partial([]byte{0xff}), "0xff begins no character")
	require.Zero(t, Partial([]byte{0x80, 0x80, 0x80}), "none of the last bytes begins a character")
}

func FuzzPartial(f *testing.F) {
	f.Add([]byte("a€"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := Partial(b)
		if utf8.Valid(b) && n != 0 {
			t.Fatalf("%q is complete, and %d bytes of it are not", b, n)
		}
		if n > 0 && utf8.FullRune(b[len(b)-n:]) {
			t.Fatalf("the last %d bytes of %q are a character", n, b)
		}
	})
}
