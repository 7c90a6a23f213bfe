package signin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/keyfile"
)

func TestG13_TicketsAreOfAPurposeAndAKey(t *testing.T) {
	ring := keyfile.New(time.Unix(1_700_000_000, 0))
	text, err := SealTicket(ring, "a", map[string]string{"secret": "s3cret"})
	require.NoError(t, err)
	require.NotContains(t, text, "s3cret")
	var got map[string]string
	require.NoError(t, OpenTicket(ring, "a", text, &got))
	require.Equal(t, "s3cret", got["secret"])

	require.ErrorIs(t, OpenTicket(ring, "b", text, &got), ErrInvalidTicket, "another purpose")
	require.ErrorIs(t, OpenTicket(keyfile.New(time.Unix(1_700_000_000, 0)), "a", text, &got), ErrInvalidTicket,
		"another installation")
	require.ErrorIs(t, OpenTicket(ring, "a", text, &[]string{}), ErrInvalidTicket, "another content")
	for i := range text {
		changed := text[:i] + string(rune(text[i])^1) + text[i+1:]
		require.ErrorIs(t, OpenTicket(ring, "a", changed, &got), ErrInvalidTicket, "byte %d", i)
	}
	for _, bad := range []string{
		"", ".", "x", text[:len(text)-1], strings.TrimPrefix(text, ring.Active().ID),
		ring.Active().ID + ".",
	} {
		require.ErrorIs(t, OpenTicket(ring, "a", bad, &got), ErrInvalidTicket, bad)
	}
}
