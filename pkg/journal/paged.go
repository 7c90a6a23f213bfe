package journal

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/pages"
)

// Paged is a State that is written to snapshots, and read from them, in pages: one for each owner of a part of it. The pages have
// everything that the state has.
type Paged interface {
	State
	// Owners calls touch with the owners whose pages an event may change, each at least once. It is called with the state as it is
	// before Apply.
	Owners(ev *Event, touch func(pages.Owner))
	// Page returns the page of an owner, nil if the state has nothing of it. It is cheap: the page refers to records, which are never
	// edited, and it stays valid while further events are applied. The same state gives pages that are encoded to the same bytes.
	Page(o pages.Owner) proto.Message
	// NewPage returns an empty message of the type that Page returns.
	NewPage() proto.Message
	// AddPage puts a page into a state that has nothing of the owner. Owners may come in any order. The state keeps the records of the
	// page.
	AddPage(o pages.Owner, page proto.Message) error
	// AllOwners calls fn with each owner that has a page, in any order, each once.
	AllOwners(fn func(pages.Owner))
}
