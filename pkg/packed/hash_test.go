package packed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Pages have hashes, so they stay the same.
func TestHash(t *testing.T) {
	require.NotEqual(t, Hash("a", "b"), Hash("", "ab"))
	require.EqualValues(t, 0x7171d0573be234a7, Hash("", "tsk_1"))
}
