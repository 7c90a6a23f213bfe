package journal

import "quartet/pkg/journal/pages"

// Paged is a State that is written to snapshots, and read from them, in pages.
type Paged interface {
	State
	pages.State
}
