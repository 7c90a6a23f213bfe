package admin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestErasedInWords: one of a kind is in the singular.
func TestErasedInWords(t *testing.T) {
	for want, e := range map[string]erased{
		"namespace acme: 0 agents deleted, 0 keys revoked\n": {Namespace: "acme"},
		"namespace acme: 1 agent deleted, 1 key revoked\n1 key of an admin is left: quartet key list, quartet key " +
			"revoke\n": {Namespace: "acme", AgentsDeleted: 1, KeysRevoked: 1, AdminKeysLeft: 1},
		"namespace acme: 2 agents deleted, 3 keys revoked\n4 keys of admins are left: quartet key list, quartet key " +
			"revoke\n": {Namespace: "acme", AgentsDeleted: 2, KeysRevoked: 3, AdminKeysLeft: 4},
	} {
		require.Equal(t, want, e.String())
	}
}
