package keyfile

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func TestSealedSecrets(t *testing.T) {
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	sealed := must.Value(SealSecret(key, "a", "secret"))(t)
	require.Equal(t, sealed, must.Value(SealSecret(key, "a", "secret"))(t))
	for _, c := range [][2]string{{"b", "secret"}, {"a", "secrets"}} {
		different := must.Value(SealSecret(key, c[0], c[1]))(t)
		require.NotEqual(t, sealed[:12], different[:12], "the nonce is another one")
	}
	require.Equal(t, "secret", must.Value(OpenSecret(key, "a", sealed))(t))
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		_, err := OpenSecret(key, "a", changed)
		require.Error(t, err, "byte %d", i)
		_, err = OpenSecret(key, "a", sealed[:i])
		require.Error(t, err, "%d bytes", i)
	}
	_, err := OpenSecret(other, "a", sealed)
	require.Error(t, err)
	_, err = OpenSecret(key, "b", sealed)
	require.Error(t, err)
	_, err = SealSecret(key[:31], "a", "secret")
	require.Error(t, err)
	_, err = OpenSecret(key[:31], "a", sealed)
	require.Error(t, err)
}
