package sealed

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSealedSecrets(t *testing.T) {
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	sealed, err := Seal(key, "a", "secret")
	require.NoError(t, err)
	again, err := Seal(key, "a", "secret")
	require.NoError(t, err)
	require.Equal(t, sealed, again)
	for _, c := range [][2]string{{"b", "secret"}, {"a", "secrets"}} {
		different, err := Seal(key, c[0], c[1])
		require.NoError(t, err)
		require.NotEqual(t, sealed[:12], different[:12], "the nonce is another one")
	}
	got, err := Open(key, "a", sealed)
	require.NoError(t, err)
	require.Equal(t, "secret", got)
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		_, err := Open(key, "a", changed)
		require.Error(t, err, "byte %d", i)
		_, err = Open(key, "a", sealed[:i])
		require.Error(t, err, "%d bytes", i)
	}
	_, err = Open(other, "a", sealed)
	require.Error(t, err)
	_, err = Open(key, "b", sealed)
	require.Error(t, err)
	_, err = Seal(key[:31], "a", "secret")
	require.Error(t, err)
	_, err = Open(key[:31], "a", sealed)
	require.Error(t, err)
}
