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
		require.Error(t, must.Err(OpenSecret(key, "a", changed)), "byte %d", i)
		require.Error(t, must.Err(OpenSecret(key, "a", sealed[:i])), "%d bytes", i)
	}
	require.Error(t, must.Err(OpenSecret(other, "a", sealed)))
	require.Error(t, must.Err(OpenSecret(key, "b", sealed)))
	require.Error(t, must.Err(SealSecret(key[:31], "a", "secret")))
	require.Error(t, must.Err(OpenSecret(key[:31], "a", sealed)))
}
