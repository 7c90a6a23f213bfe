package page_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/page"
)

func TestSizeAtItsLimits(t *testing.T) { // SPEC X9
	for _, c := range []struct {
		in   int32
		def  int
		want int
		bad  bool
	}{
		{0, 0, 50, false},
		{0, 20, 20, false},
		{1, 0, 1, false},
		{500, 0, 500, false},
		{501, 0, 0, true},
		{-1, 0, 0, true},
	} {
		got, err := page.Size(c.in, c.def)
		if c.bad {
			require.ErrorIs(t, err, fault.LimitExceeded, "%d", c.in)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestTokenRoundTrip(t *testing.T) {
	tok := page.Token("items", "a", "", "c")
	got, err := page.Position("items", tok, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "", "c"}, got)

	got, err = page.Position("items", "", 3)
	require.NoError(t, err)
	require.Nil(t, got)
}

type request struct {
	size  int32
	token string
}

func (r request) GetPageSize() int32   { return r.size }
func (r request) GetPageToken() string { return r.token }

func TestReadALongList(t *testing.T) {
	first, err := page.Read("items", request{})
	require.NoError(t, err)
	require.Equal(t, page.DefaultSize, first.Size)
	require.Empty(t, first.After)
	second, err := page.Read("items", request{500, first.Next("wi_2")})
	require.NoError(t, err)
	require.Equal(t, 500, second.Size)
	require.Equal(t, "wi_2", second.After)

	_, err = page.Read("items", request{size: 501})
	require.ErrorIs(t, err, fault.LimitExceeded)
	_, err = page.Read("others", request{token: first.Next("wi_2")})
	require.ErrorIs(t, err, fault.CursorInvalid)
}

func TestForeignTokensAreRefused(t *testing.T) {
	for _, tok := range []string{"!", "abc", page.Token("other", "a", "b", "c"), page.Token("items", "a")} {
		_, err := page.Position("items", tok, 3)
		require.ErrorIs(t, err, fault.CursorInvalid, "%q", tok)
	}
}

func FuzzPosition(f *testing.F) {
	f.Add(page.Token("items", "a", "b"))
	f.Add("")
	f.Fuzz(func(t *testing.T, tok string) {
		got, err := page.Position("items", tok, 2)
		if err == nil && tok != "" {
			require.Len(t, got, 2)
		}
	})
}
