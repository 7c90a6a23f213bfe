package confine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A kernel that cannot enforce a policy is refused, whatever else it has.
func TestT10_KernelsWithoutWhatAPolicyNeeds(t *testing.T) {
	const (
		signals  = "version 5 of this kernel's Landlock does not confine signals; without namespaces, version 6"
		abstract = "version 5 of this kernel's Landlock does not confine abstract Unix sockets"
	)
	for _, c := range []struct {
		policy   Policy
		abi      int
		expected string // empty: it can be enforced
	}{
		{Policy{Level: LevelNamespaces, Network: NetworkNone}, 0, ""},
		{Policy{Level: LevelNamespaces, Network: NetworkOutside}, 0, ""},
		{Policy{Level: LevelNamespaces, Network: NetworkAll}, 0, "version 0 of this kernel's Landlock"},
		{Policy{Level: LevelNamespaces, Network: NetworkAll}, 5, abstract},
		{Policy{Level: LevelNamespaces, Network: NetworkAll}, 6, ""},
		{Policy{Level: LevelLandlock, Network: NetworkNone}, 0, "this kernel has no Landlock"},
		{Policy{Level: LevelLandlock, Network: NetworkNone}, 5, signals},
		{Policy{Level: LevelLandlock, Network: NetworkAll}, 5, signals},
		{Policy{Level: LevelLandlock, Network: NetworkNone}, 6, ""},
		{Policy{Level: LevelLandlock, Network: NetworkAll}, 7, ""},
	} {
		err := missing(&c.policy, c.abi)
		if c.expected == "" {
			require.NoError(t, err, "%+v", c)
		} else {
			require.ErrorContains(t, err, c.expected, "%+v", c)
		}
	}
}
