package model

import (
	"time"

	"quartet/pkg/journal"
)

var _ journal.Retaining = (*State)(nil)

// Needs implements journal.Retaining. No event is needed: nothing reads events of this plane back, and nothing counts
// them from the beginning.
func (*State) Needs(*journal.Event, time.Time) bool { return false }
