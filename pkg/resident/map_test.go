package resident

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// text is a value.
type text struct{ s string }

// texts is a Map of texts whose summary is their length, with what its codec was called for.
type texts struct {
	*Map[string, text, int]
	stay            string // a value that has to stay
	unreadable      string // one of which Value returns an error
	evicted, loaded []string
}

func newTexts(f *File, values ...string) *texts {
	m := &texts{}
	m.Map = New(Codec[string, text, int]{
		Page: func(k string, v *text) (proto.Message, int, bool) {
			return wrapperspb.String(v.s), len(v.s), k != m.stay
		},
		New: func() proto.Message { return &wrapperspb.StringValue{} },
		Value: func(k string, p proto.Message) (*text, error) {
			if k == m.unreadable {
				return nil, errors.New("no text")
			}
			return &text{p.(*wrapperspb.StringValue).GetValue()}, nil
		},
		Evicted: func(k string, _ *text) { m.evicted = append(m.evicted, k) },
		Loaded: func(k string, v *text) {
			if left, is := m.Summary(k); !is || left != len(v.s) {
				panic("the value is not evicted any more")
			}
			m.loaded = append(m.loaded, k)
		},
	})
	m.Use(f)
	for _, k := range values {
		m.Put(k, &text{"value " + k})
	}
	return m
}

// evictAll evicts what can be evicted.
func (m *texts) evictAll(t *testing.T) (n int) {
	n, more, err := m.Evict(math.MaxInt, false)
	require.NoError(t, err)
	require.False(t, more)
	return n
}

func (m *texts) counts() []int {
	n := m.Counts()
	return []int{n.Resident, n.Evicted, int(n.Reads)}
}

// An evicted value is read as a copy, and is resident again once it is edited.
func TestMap(t *testing.T) {
	f := newFile(t)
	m := newTexts(f, "a", "b", "c")
	require.Nil(t, m.Get("d"))
	require.Nil(t, m.Edit("d"))
	require.Nil(t, m.Peek("d"))
	a := m.Get("a")
	require.Same(t, a, m.Edit("a"))
	require.Same(t, a, m.Peek("a"))
	_, is := m.Summary("a")
	require.False(t, is)

	require.Equal(t, 3, m.evictAll(t))
	require.Equal(t, []int{0, 3, 0}, m.counts())
	require.ElementsMatch(t, []string{"a", "b", "c"}, m.keys())
	require.ElementsMatch(t, []string{"a", "b", "c"}, m.evicted)
	require.Equal(t, map[string]int{"a": 7, "b": 7, "c": 7}, maps.Collect(m.Summaries()))
	require.Positive(t, f.Bytes())
	require.Panics(t, func() { m.Put("a", &text{}) })

	copied := m.Get("a")
	require.NotSame(t, a, copied)
	require.Equal(t, a, copied)
	require.Equal(t, "value b", m.Peek("b").s)
	require.Equal(t, []int{0, 3, 2}, m.counts(), "a read changes nothing")
	require.Empty(t, m.loaded)
	left, is := m.Summary("a")
	require.True(t, is)
	require.Equal(t, 7, left)

	m.Edit("a").s = "changed"
	require.Equal(t, []string{"a"}, m.loaded)
	require.Equal(t, "changed", m.Get("a").s)
	require.Same(t, m.Get("a"), m.Edit("a"))
	require.Equal(t, []int{1, 2, 2}, m.counts())
	require.Equal(t, 3, m.Len())
	for k, v := range m.Resident() {
		require.Equal(t, "a", k)
		require.Same(t, m.Get("a"), v)
	}
	require.Equal(t, 1, m.evictAll(t))
	require.Equal(t, "changed", m.Get("a").s)
	require.Equal(t, []int{0, 3, 3}, m.counts())

	m.Edit("b")
	m.Delete("a") // evicted
	m.Delete("b") // resident
	m.Delete("d")
	require.Nil(t, m.Get("a"))
	require.False(t, m.Has("b"))
	require.Equal(t, []string{"c"}, m.keys())
	m.Put("a", &text{"another one"})
	require.Equal(t, "another one", m.Get("a").s)
	m.Delete("a")
	m.Delete("c")
	require.Zero(t, m.Len())
	require.Zero(t, f.Bytes(), "the file has nothing any more")
}

func (m *Map[K, V, S]) keys() []K { return slices.Collect(m.Keys()) }

// Who stops looking at values is called no more.
func TestMapIsLookedAtInPart(t *testing.T) {
	m := newTexts(newFile(t), "a", "b", "c", "d")
	_, _, err := m.Evict(2, false)
	require.NoError(t, err)
	for most := 1; most <= 4; most++ {
		n := 0
		for range m.Keys() {
			if n++; n == most {
				break
			}
		}
		require.Equal(t, most, n)
	}
	for range m.Resident() {
		break
	}
	for range m.Summaries() {
		break
	}
}

// Values that were used since they were looked at stay; a look is no use, and neither is Peek.
func TestMapEvictsWhatIsUnused(t *testing.T) {
	m := newTexts(newFile(t), "a", "b", "c")
	evict := func() []string {
		m.evicted = nil
		n, more, err := m.Evict(10, true)
		require.NoError(t, err)
		require.False(t, more)
		require.Len(t, m.evicted, n)
		slices.Sort(m.evicted)
		return m.evicted
	}
	require.Empty(t, evict(), "who was added was used")
	m.Get("a")
	m.Peek("b")
	m.Edit("c")
	require.Equal(t, []string{"b"}, evict())
	m.Get("b") // a copy
	m.Get("a")
	require.Equal(t, []string{"c"}, evict())
	m.Edit("b")
	require.Equal(t, []string{"a"}, evict(), "who was loaded was used")
	require.Equal(t, []string{"b"}, evict())
	require.Empty(t, evict())
}

// A call looks at so many, and the next goes on there, whatever was added and deleted in between.
func TestMapEvictsInParts(t *testing.T) {
	m := newTexts(newFile(t), "a", "b", "c", "d", "e")
	m.stay = "b"
	total := 0
	for range 5 {
		n, more, err := m.Evict(1, false)
		require.NoError(t, err)
		require.True(t, more)
		total += n
	}
	n, more, err := m.Evict(1, false)
	require.NoError(t, err)
	require.False(t, more, "all were looked at")
	require.Zero(t, n)
	require.Equal(t, 4, total)
	require.Equal(t, []int{1, 4, 0}, m.counts())
	for _, k := range m.keys() {
		m.Delete(k)
		_, _, err := m.Evict(2, false)
		require.NoError(t, err)
	}
	require.Zero(t, m.Len())
}

// A value that has to stay is not written.
func TestMapValuesThatStay(t *testing.T) {
	f := newFile(t)
	m := newTexts(f, "a")
	m.stay = "a"
	require.Zero(t, m.evictAll(t))
	require.Equal(t, []int{1, 0, 0}, m.counts())
	require.Zero(t, f.Bytes())
	m.Put("b", &text{"value b"})
	require.Equal(t, 1, m.evictAll(t))
	require.Equal(t, "value b", m.Get("b").s)
}

// A Map without a file evicts nothing, and one with a codec that does not ask to be called calls nobody.
func TestMapWithoutAFile(t *testing.T) {
	m := newTexts(nil, "a")
	require.Zero(t, m.evictAll(t))
	require.Equal(t, []int{1, 0, 0}, m.counts())
	m.Use(newFile(t))
	m.codec.Evicted, m.codec.Loaded = nil, nil
	require.Equal(t, 1, m.evictAll(t))
	require.Equal(t, "value a", m.Edit("a").s)
}

// A file that cannot be written is an error, and all values that it was to have stay resident.
func TestMapOfAFullFile(t *testing.T) {
	f := newFile(t)
	m := newTexts(f, "a", "b", "c")
	_, _, err := m.Evict(1, false)
	require.NoError(t, err)
	for want, fail := range map[string]func() (mend func()){
		"write ": func() func() {
			was := f.f
			f.f = unwritable(t)
			return func() { f.f = was }
		},
		ErrFull.Error(): func() func() {
			end, free := f.end, f.free
			f.end, f.free = math.MaxUint32, map[uint32][]uint32{}
			return func() { f.end, f.free = end, free }
		},
	} {
		mend := fail()
		n, more, err := m.Evict(10, false)
		require.ErrorContains(t, err, want)
		require.Zero(t, n)
		require.False(t, more)
		require.Equal(t, []int{2, 1}, m.counts()[:2])
		require.Len(t, m.evicted, 1, "nobody is called for a value that stays")
		mend()
		for _, k := range []string{"a", "b", "c"} {
			require.Equal(t, "value "+k, m.Get(k).s)
		}
	}
	require.Equal(t, 2, m.evictAll(t))
}

// What was read is there for the next reader, until others were read or it is edited.
func TestMapRecentReads(t *testing.T) {
	m := newTexts(newFile(t))
	for i := range 2 * recentReads {
		m.Put(fmt.Sprint(i), &text{fmt.Sprint("value ", i)})
	}
	m.evictAll(t)
	first := m.Get("0")
	require.Same(t, first, m.Get("0"))
	require.Same(t, first, m.Peek("0"))
	require.Equal(t, 1, m.counts()[2])
	for i := 1; i < recentReads; i++ {
		m.Get(fmt.Sprint(i))
	}
	require.Same(t, first, m.Get("0"))
	require.Equal(t, recentReads, m.counts()[2])
	m.Get(fmt.Sprint(recentReads))
	require.NotSame(t, first, m.Get("0"), "it was the oldest")
	require.Equal(t, recentReads+2, m.counts()[2])

	kept := m.Get("5")
	require.Same(t, kept, m.Edit("5"), "nobody else reads it")
	require.Equal(t, recentReads+2, m.counts()[2])
	kept.s = "changed"
	require.Equal(t, 1, m.evictAll(t))
	require.Equal(t, "changed", m.Get("5").s, "the one that was kept is not the value any more")
	require.NotSame(t, kept, m.Get("5"))
	m.Delete("5")
	m.Put("5", &text{"the next"})
	m.evictAll(t) // to the same place
	require.Equal(t, "the next", m.Get("5").s)
}

// Whoever needs a value that cannot be read fails, with the reason.
func TestMapOfADamagedFile(t *testing.T) {
	f := newFile(t)
	m := newTexts(f, "a", "b")
	m.evictAll(t)
	m.unreadable = "b"
	require.PanicsWithError(t, "resident: what was evicted cannot be read: no text", func() { m.Get("b") })
	_, err := f.f.WriteAt([]byte(strings.Repeat("x", 1000)), unit)
	require.NoError(t, err)
	const other = "resident: what was evicted cannot be read: resident: the checksum is another one"
	require.PanicsWithError(t, other, func() { m.Get("a") })
	require.PanicsWithError(t, other, func() { m.Edit("a") })
	require.Equal(t, []int{0, 2}, m.counts()[:2], "it is evicted still")
	require.NoError(t, f.f.Truncate(0))
	require.PanicsWithError(t, "resident: what was evicted cannot be read: resident: EOF", func() { m.Get("a") })
	require.NoError(t, f.Close())
	defer func() { require.ErrorIs(t, recover().(error), os.ErrClosed) }()
	m.Get("a")
}

// Values are read by many at a time.
func TestMapIsReadConcurrently(t *testing.T) {
	m := newTexts(newFile(t))
	const values = 3 * recentReads
	for i := range values {
		m.Put(fmt.Sprint(i), &text{fmt.Sprint("value ", i)})
	}
	_, _, err := m.Evict(values*2/3, false)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wrong := make(chan string, 4)
	for range 4 {
		wg.Go(func() {
			for range 500 {
				k := fmt.Sprint(rand.IntN(values))
				if v := m.Get(k); v.s != "value "+k || !m.Has(k) {
					wrong <- k
					return
				}
			}
		})
	}
	wg.Wait()
	close(wrong)
	require.Empty(t, <-wrong)
	require.Equal(t, []int{values / 3, values * 2 / 3}, m.counts()[:2])
}

// Whatever is done in whatever order, a Map has what a map has.
func TestMapIsAMap(t *testing.T) {
	f := newFile(t)
	m, want := newTexts(f), map[string]string{}
	for i := range 5000 {
		k := fmt.Sprint(rand.IntN(50))
		switch _, has := want[k]; rand.IntN(6) {
		case 0:
			if !has {
				want[k] = fmt.Sprint("value ", i)
				m.Put(k, &text{want[k]})
			}
		case 1:
			if rand.IntN(4) == 0 {
				delete(want, k)
				m.Delete(k)
			}
		case 2:
			if has {
				want[k] = strings.Repeat("x", i%300)
				m.Edit(k).s = want[k]
			}
		case 3:
			_, _, err := m.Evict(rand.IntN(10), rand.IntN(2) == 0)
			require.NoError(t, err)
		default:
			v := m.Get(k)
			require.Equal(t, has, v != nil)
			require.Equal(t, has, m.Has(k))
			if has {
				require.Equal(t, want[k], v.s)
			}
		}
		require.Equal(t, len(want), m.Len())
	}
	require.Len(t, m.keys(), len(want))
	for k, s := range want {
		require.Equal(t, s, m.Edit(k).s)
	}
	require.Zero(t, f.Bytes())
}
