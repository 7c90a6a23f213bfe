package packed

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

// named packs strings whose ids are what is before their colons.
type named struct{ texts }

func (named) ID(s *string) string {
	id, _, _ := strings.Cut(*s, ":")
	return id
}

// TestRecords: records are those that were put and not dropped, each in its place, whatever of them is packed, and the
// same when they were read from a page.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Records[*string, named]
		values, made, open, ended, next := map[string]string{}, []string{}, []string{}, []string{}, 0
		put := func(id string) *string {
			s := fmt.Sprintf("%s:%d", id, len(values[id]))
			values[id] = s
			return &s
		}
		without := func(ids []string, id string) []string {
			return slices.DeleteFunc(slices.Clone(ids), func(o string) bool { return o == id })
		}
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			known := rapid.SampledFrom(append([]string{fmt.Sprint("r", next)}, made...)).Draw(t, "record")
			if !slices.Contains(made, known) {
				made = append(made, known)
				next++
			}
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < 3:
				r.PutOpen(put(known))
				open, ended = append(without(open, known), known), without(ended, known)
			case step < 9 || len(ended) == 0:
				r.PutEnded(put(known))
				open = without(open, known)
				if !slices.Contains(ended, known) {
					ended = append(ended, known)
				}
			default:
				r.PutEnded(put(known))
				if open = without(open, known); !slices.Contains(ended, known) {
					ended = append(ended, known)
				}
				require.Equal(t, values[ended[0]], *r.Drop())
				made, ended = without(made, ended[0]), ended[1:]
			}
		}
		of := func(ids []string) []string {
			all := []string{}
			for _, id := range ids {
				all = append(all, values[id])
			}
			return all
		}
		require.Equal(t, len(made), r.Len())
		require.Equal(t, len(ended), r.EndedLen())
		require.Equal(t, of(made), valuesOf(r.All()))
		require.Equal(t, of(ended), valuesOf(r.Ended()))
		slices.SortFunc(open, func(a, b string) int { return slices.Index(made, a) - slices.Index(made, b) })
		require.Equal(t, of(open), valuesOf(r.Open()))
		require.ElementsMatch(t, of(open), valuesOf(slices.Collect(r.EachOpen())))
		for _, id := range made {
			x, ok := r.Get(id)
			require.True(t, ok)
			require.Equal(t, values[id], *x)
			require.Equal(t, slices.Contains(open, id), r.IsOpen(id))
		}
		_, ok := r.Get("none")
		require.False(t, ok)

		first, rest := r.Page()
		again, old := Records[*string, named]{}, Records[*string, named]{}
		require.NoError(t, again.Restore(first, proto.CloneOf(rest)))
		require.NoError(t, old.RestoreAll(r.All(), slices.Clone(ended)))
		for _, read := range []*Records[*string, named]{&again, &old} {
			require.Equal(t, valuesOf(r.All()), valuesOf(read.All()))
			require.Equal(t, valuesOf(r.Ended()), valuesOf(read.Ended()))
			require.Equal(t, valuesOf(r.Open()), valuesOf(read.Open()))
		}
		_, was := again.Page()
		require.True(t, proto.Equal(rest, was), "%v\n%v", rest, was)
		x := "another: 1"
		again.PutEnded(&x)
		r.PutEnded(&x)
		require.Equal(t, valuesOf(r.All()), valuesOf(again.All()))
	})
}

func valuesOf(all []*string) []string { return values(all) }

// A page that no Records wrote is an error.
func TestRecordsThatAreInvalid(t *testing.T) {
	var r Records[*string, named]
	for i := range 30 {
		s := fmt.Sprint("r", i, ":")
		if i < 3 {
			r.PutOpen(&s)
		} else {
			r.PutEnded(&s)
		}
	}
	r.Drop()
	open, rest := r.Page()
	require.Len(t, rest.GetGroups(), 1)
	var read Records[*string, named]
	require.NoError(t, read.Restore(open, rest))
	for want, change := range map[string]func(open []*string, rest *snapshotv1.EndedRecords) []*string{
		"2 open records with 3": func(open []*string, _ *snapshotv1.EndedRecords) []*string { return open[1:] },
		"26 places of 25": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.IdHashes = rest.GetIdHashes()[1:]
			return open
		},
		"place 2 is there twice": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Places[7] = 2
			return open
		},
		"behind 29": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.NextPlace = 29
			return open
		},
		"r1\" is there twice": func(open []*string, _ *snapshotv1.EndedRecords) []*string {
			open[2] = open[1]
			return open
		},
		"cannot be read": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Oldest = []byte("no message")
			return open
		},
		"that are not packed": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Newest = []byte("no message")
			return open
		},
		"and 2 were forgotten": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Forgotten = 2
			return open
		},
		"and -7 were forgotten": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Forgotten = -7
			return open
		},
		"0 groups between 7": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.Groups = nil
			return open
		},
		"in the place of another": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.IdHashes[0]++
			return open
		},
		"\"r29\" is in the place ": func(open []*string, rest *snapshotv1.EndedRecords) []*string {
			rest.IdHashes[25]++
			return open
		},
	} {
		rest := proto.CloneOf(rest)
		changed := change(slices.Clone(open), rest)
		require.ErrorContains(t, read.Restore(changed, rest), want, want)
	}
	a, empty := "a:", ":"
	require.ErrorContains(t, read.RestoreAll([]*string{&a, &a}, nil), `"a" is there twice`)
	require.ErrorContains(t, read.RestoreAll([]*string{&empty}, nil), "no id")
	require.ErrorContains(t, read.RestoreAll([]*string{&a}, []string{"a", "b"}), "b has ended and is not there")
	require.ErrorContains(t, read.RestoreAll([]*string{&a}, []string{"a", "a"}), "a has ended and is not there")
}
