package access

import (
	"context"
	"iter"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// Newest is a list of what an agent has in the journal, newest first. Its entries are numbered
// from 0 in the order in which they were written. A page token has the number of the last entry
// that the page considered, and the next page begins before it.
type Newest[S journal.State, M proto.Message] struct {
	// Kind names the list in page tokens.
	Kind string
	// MaxBytes bounds the entries of a page together. An entry that is larger by itself has a
	// page of its own.
	MaxBytes int
	// Entries returns the numbers of the matching entries, newest first, and the wal_seqs of
	// their events.
	Entries func(s S) (iter.Seq2[int, []uint64], error)
	// Read returns an entry, from its events.
	Read func(events []*journal.Event) (M, error)
	// Keep reports whether an entry is listed; nil lists all.
	Keep func(M) bool
	// MaxRead bounds how many entries a page reads where Keep is set. Such a page may be empty
	// although more follow: its token continues behind what was read.
	MaxRead int
}

// ListRequest is a request for a page of a list of an agent.
type ListRequest interface {
	GetAgentId() string
	GetPageSize() int32
	GetPageToken() string
}

// Page returns the page that a request asks for, and the token of the next page, or "" after the
// last one. If the next entry has an event that was removed from the journal, because history is not kept
// that long, the list ends before that entry and removed is true. Page checks that the caller may read the
// agent, and refuses a token of another list.
func (l Newest[S, M]) Page(ctx context.Context, e *plane.Engine[S], req ListRequest) (entries []M, next string,
	removed bool, err error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, "", false, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, "", false, err
	}
	before, err := l.before(req.GetPageToken())
	if err != nil {
		return nil, "", false, err
	}
	most := size
	if l.Keep != nil {
		most = l.MaxRead
	}
	var numbers []int
	var events [][]uint64
	_, _, err = plane.View(ctx, e, req.GetAgentId(), func(s S) (struct{}, error) {
		numbers, events = nil, nil
		matching, err := l.Entries(s)
		if err != nil {
			return struct{}{}, err
		}
		for n, walSeqs := range matching {
			if before >= 0 && n >= before {
				continue
			}
			numbers, events = append(numbers, n), append(events, walSeqs)
			if len(numbers) > most { // there is a next page
				break
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		return nil, "", false, err
	}
	bytes := 0
	for i := range numbers {
		if i == most || len(entries) == size {
			return entries, l.token(numbers[i-1]), false, nil
		}
		// One at a time, because all of them may be much larger than the page.
		found, err := journal.ReadBack(ctx, e.For(actor.Namespace, req.GetAgentId()), events[i])
		if err != nil {
			return nil, "", false, err
		}
		if slices.ContainsFunc(found, (*journal.Event).Removed) {
			return entries, "", true, nil
		}
		m, err := l.Read(found)
		if err != nil {
			return nil, "", false, err
		}
		if l.Keep != nil && !l.Keep(m) {
			continue
		}
		if bytes += proto.Size(m); len(entries) > 0 && bytes > l.MaxBytes {
			return entries, l.token(numbers[i-1]), false, nil
		}
		entries = append(entries, m)
	}
	return entries, "", false, nil
}

// before returns the number before which the page of a token begins, or -1 for the first page.
func (l Newest[S, M]) before(token string) (int, error) {
	at, err := page.Position(l.Kind, token, 1)
	if err != nil || at == nil {
		return -1, err
	}
	n, err := strconv.Atoi(at[0])
	if err != nil || n < 0 {
		return 0, fault.CursorInvalid.Newf("page_token %q was not made by this list", token)
	}
	return n, nil
}

func (l Newest[S, M]) token(last int) string { return page.Token(l.Kind, strconv.Itoa(last)) }
