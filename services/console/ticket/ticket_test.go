package ticket

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/keyfile"
)

func TestG13_TicketsAreOfAPurposeAndAKey(t *testing.T) {
	ring := keyfile.New(time.Unix(1_700_000_000, 0))
	text, err := Seal(ring, "a", map[string]string{"secret": "s3cret"})
	require.NoError(t, err)
	require.NotContains(t, text, "s3cret")
	var got map[string]string
	require.NoError(t, Open(ring, "a", text, &got))
	require.Equal(t, "s3cret", got["secret"])

	require.ErrorIs(t, Open(ring, "b", text, &got), ErrInvalid, "another purpose")
	require.ErrorIs(t, Open(keyfile.New(time.Unix(1_700_000_000, 0)), "a", text, &got), ErrInvalid,
		"another installation")
	require.ErrorIs(t, Open(ring, "a", text, &[]string{}), ErrInvalid, "another content")
	for i := range text {
		changed := text[:i] + string(rune(text[i])^1) + text[i+1:]
		require.ErrorIs(t, Open(ring, "a", changed, &got), ErrInvalid, "byte %d", i)
	}
	for _, bad := range []string{
		"", ".", "x", text[:len(text)-1], strings.TrimPrefix(text, ring.Active().ID),
		ring.Active().ID + ".",
	} {
		require.ErrorIs(t, Open(ring, "a", bad, &got), ErrInvalid, bad)
	}
}
