package requests

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A memory has what a list of its additions has, over so many that it drops most of them, with keys that are added
// again.
func TestAMemoryIsAListOfAdditions(t *testing.T) {
	const limit, keys, steps = 1000, 4000, 20_000
	r := rand.New(rand.NewPCG(3, 4))
	m := NewPool(limit).New()
	m.cut = 1<<32 - 5000 // its numbers wrap around
	m.order, m.head = nil, 0
	type added struct {
		key   Key
		entry Entry
		gone  bool
	}
	var list []added
	newest := map[Key]int{}
	now := int64(1_700_000_000)
	walSeq := uint64(1)
	for i := range steps {
		k := Key{byte(r.IntN(keys) >> 8), byte(r.IntN(256))}
		if at, ok := newest[k]; ok && r.IntN(2) == 0 {
			e := &list[at].entry
			require.Equal(t, e.Next() == walSeq, m.Extend(k, walSeq, e.Args))
			if e.Next() == walSeq {
				e.Count++
				walSeq++
			}
			require.False(t, m.Extend(k, walSeq, e.Args+1))
		}
		if r.IntN(5000) == 0 {
			now += int64(Term / time.Second / 2)
		}
		e := Entry{First: walSeq, Args: r.Uint64(), Count: 1, Unix: uint32(now)}
		walSeq++
		m.Add(k, e)
		if at, ok := newest[k]; ok {
			list[at].gone = true
		}
		list = append(list, added{key: k, entry: e})
		newest[k] = len(list) - 1
		for at := range list { // what is oldest goes first
			a := &list[at]
			if a.gone {
				continue
			}
			if len(newest) <= limit-limit/floorOf && !a.entry.expired(now) {
				break
			}
			a.gone = true
			delete(newest, a.key)
		}
		require.Equal(t, len(newest), len(m.numbers)) //nolint:testifylint // Len prints the whole map
		got, ok := m.Lookup(k, time.Unix(now, 0))
		require.True(t, ok)
		require.Equal(t, e, got)
		if i%500 > 0 {
			continue
		}
		n := max(0, len(list)-r.IntN(2*limit))
		var want, since []Entry
		for _, a := range list[n:] {
			if !a.gone {
				want = append(want, a.entry)
			}
		}
		m.Since(m.Additions()-len(list)+n, func(k Key, e Entry) {
			since = append(since, e)
			found, ok := m.Lookup(k, time.Unix(int64(e.Unix), 0))
			require.True(t, ok)
			require.Equal(t, e, found)
		})
		require.Equal(t, want, since)
	}
}
