package snapshot

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/event"
	"quartet/pkg/resident"
)

// Owner names whom a page is about: an agent, or whatever a plane divides its state by. The zero Owner has what belongs
// to nobody else.
type Owner struct{ Namespace, ID string }

// Compare orders owners by namespace, then by id.
func (o Owner) Compare(other Owner) int {
	return cmp.Or(cmp.Compare(o.Namespace, other.Namespace), cmp.Compare(o.ID, other.ID))
}

// EncodePage returns the bytes of a page. The same page always has the same bytes.
func EncodePage(page proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(page)
}

// State is a plane's state that is written to snapshots, and read from them, in pages: one for each owner of a part of
// it. The pages have everything that the state has.
type State interface {
	// Owners calls touch with the owners whose pages an event may change, each at least once. It is called with the
	// state as it is before Apply.
	Owners(ev *event.Event, touch func(Owner))
	// Page returns the page of an owner, nil if the state has nothing of it. It is cheap: the page refers to records,
	// which are never edited, and it stays valid while further events are applied. The same state gives pages that are
	// encoded to the same bytes.
	Page(o Owner) proto.Message
	// NewPage returns an empty message of the type that Page returns.
	NewPage() proto.Message
	// AddPage puts a page into a state that has nothing of the owner. Owners may come in any order. The state keeps the
	// records of the page.
	AddPage(o Owner, page proto.Message) error
	// AllOwners calls fn with each owner that has a page, in any order, each once.
	AllOwners(fn func(Owner))
}

// Resident is a State that can evict owners from memory to a file. Readers of the state cannot tell which ones are
// evicted.
type Resident interface {
	State
	// UseFile gives an empty state its file; nil: all stays in memory.
	UseFile(f *resident.File)
	// Evict looks at the next count owners in memory, beginning where the last call ended, and evicts those that were
	// not used since they were last looked at, or all that can be if unused is false. It returns how many it evicted,
	// and more false once it has come to the end. The caller must have exclusive use of the state, as for Apply. An
	// error is one of the file; nothing is lost by it.
	Evict(count int, unused bool) (n int, more bool, err error)
	// Counts says how many owners are in memory and in the file.
	Counts() resident.Counts
}
