package projection

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a search found does not age where nothing is removed any more; that it failed does.
func TestRemovedBeforeAges(t *testing.T) {
	looked := time.Unix(1000, 0)
	for _, c := range []struct {
		failed, always bool
		age            time.Duration
		fresh          bool
	}{
		{false, false, removedTerm - 1, true},
		{false, false, removedTerm, false},
		{false, true, 1000 * removedTerm, true},
		{true, false, searchAgain - 1, true},
		{true, false, searchAgain, false},
		{true, true, searchAgain - 1, true},
		{true, true, searchAgain, false},
	} {
		r := removedBefore{looked: looked, failed: c.failed}
		require.Equal(t, c.fresh, r.fresh(looked.Add(c.age), c.always), "%+v", c)
	}
}
