package resident

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
)

// Codec turns values of a Map into messages and back. S is the summary of an evicted value.
type Codec[K comparable, V, S any] struct {
	// Page returns a message with everything that a value has, and its summary. It returns false if the value has to
	// stay resident.
	Page func(k K, v *V) (proto.Message, S, bool)
	// New returns an empty message of that type.
	New func() proto.Message
	// Value returns the value that a message has.
	Value func(k K, m proto.Message) (*V, error)
	// Evicted is called before a value is evicted, and Loaded before one becomes resident again, so that the owner of
	// the Map can update what it derives from resident values. Both are optional.
	Evicted func(k K, v *V)
	Loaded  func(k K, v *V)
}

// Map holds values by key. Get and the methods that only read may be called concurrently with each other, all others
// exclusively. A Map without a File evicts nothing.
type Map[K comparable, V, S any] struct {
	codec    Codec[K, V, S]
	file     *File
	resident map[K]*slot[K, V]
	evicted  map[K]evicted[S]
	order    []*slot[K, V] // those that are resident, in the order in which Evict looks at them
	next     int           // in order
	loads    atomic.Int64

	mu     sync.Mutex // guards recent
	recent [recentReads]read[K, V]
	oldest int // in recent
}

// recentReads is how many values that were read from the file are kept for the next reader: a call reads the same one a
// few times.
const recentReads = 32

// read is a value that was read from the file. Nobody changes it while it is here.
type read[K comparable, V any] struct {
	key   K
	place place
	value *V
}

// slot has a resident value.
type slot[K comparable, V any] struct {
	key   K
	value *V
	at    int         // in Map.order
	used  atomic.Bool // since Evict last looked at it
}

// evicted is what is left of an evicted value.
type evicted[S any] struct {
	place   place
	summary S
}

// New returns an empty Map.
func New[K comparable, V, S any](codec Codec[K, V, S]) *Map[K, V, S] {
	return &Map[K, V, S]{codec: codec, resident: map[K]*slot[K, V]{}, evicted: map[K]evicted[S]{}}
}

// Use gives a Map without evicted values a File; nil: it evicts nothing.
func (m *Map[K, V, S]) Use(f *File) { m.file = f }

// Len returns the number of values.
func (m *Map[K, V, S]) Len() int { return len(m.resident) + len(m.evicted) }

// Counts says how many values are resident and evicted, and how many evicted ones were read so far.
type Counts struct {
	Resident, Evicted int
	Reads             int64
}

// Counts returns the Counts of a Map.
func (m *Map[K, V, S]) Counts() Counts {
	return Counts{Resident: len(m.resident), Evicted: len(m.evicted), Reads: m.loads.Load()}
}

// Comparable implements pagestest.Comparable: tests compare Maps by all their values by key, resident or evicted.
func (m *Map[K, V, S]) Comparable() any {
	all := make(map[K]*V, m.Len())
	for k := range m.Keys() {
		all[k] = m.Peek(k)
	}
	return all
}

// Has reports whether there is a value.
func (m *Map[K, V, S]) Has(k K) bool {
	if m.resident[k] != nil {
		return true
	}
	_, is := m.evicted[k]
	return is
}

// Get returns a value, nil if there is none; of an evicted one it returns a copy. The caller must not change the
// result. Get panics with ErrUnreadable if the file cannot be read.
func (m *Map[K, V, S]) Get(k K) *V {
	if s := m.resident[k]; s != nil {
		if !s.used.Load() {
			s.used.Store(true)
		}
		return s.value
	}
	if e, is := m.evicted[k]; is {
		return m.load(k, e.place, true)
	}
	return nil
}

// Peek is Get for a caller whose read is not a use, such as one that reads all values.
func (m *Map[K, V, S]) Peek(k K) *V {
	if s := m.resident[k]; s != nil {
		return s.value
	}
	return m.Get(k)
}

// Summary returns the summary of an evicted value. It returns false if it is resident, or if there is none.
func (m *Map[K, V, S]) Summary(k K) (S, bool) {
	e, is := m.evicted[k]
	return e.summary, is
}

// Edit returns a value that the caller may change, nil if there is none. An evicted value becomes resident. Edit
// panics as Get does.
func (m *Map[K, V, S]) Edit(k K) *V {
	e, is := m.evicted[k]
	if !is {
		return m.Get(k)
	}
	v := m.load(k, e.place, false)
	if m.codec.Loaded != nil {
		m.codec.Loaded(k, v)
	}
	m.forget(k, e.place)
	m.add(k, v)
	return v
}

// Put adds a value. It panics if the Map has one with this key.
func (m *Map[K, V, S]) Put(k K, v *V) {
	if m.Has(k) {
		panic(fmt.Sprintf("resident: %v is there twice", k))
	}
	m.add(k, v)
}

func (m *Map[K, V, S]) add(k K, v *V) {
	s := &slot[K, V]{key: k, value: v, at: len(m.order)}
	s.used.Store(true)
	m.resident[k] = s
	m.order = append(m.order, s)
}

// Delete removes a value.
func (m *Map[K, V, S]) Delete(k K) {
	if s := m.resident[k]; s != nil {
		m.drop(s)
		return
	}
	if e, is := m.evicted[k]; is {
		m.forget(k, e.place)
	}
}

// drop removes a resident value.
func (m *Map[K, V, S]) drop(s *slot[K, V]) {
	last := len(m.order) - 1
	m.order[s.at] = m.order[last]
	m.order[s.at].at = s.at
	m.order[last] = nil
	m.order = m.order[:last]
	delete(m.resident, s.key)
}

// Keys returns the keys of all values, in no order.
func (m *Map[K, V, S]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range m.resident {
			if !yield(k) {
				return
			}
		}
		for k := range m.evicted {
			if !yield(k) {
				return
			}
		}
	}
}

// Resident returns the resident values, in no order.
func (m *Map[K, V, S]) Resident() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for k, s := range m.resident {
			if !yield(k, s.value) {
				return
			}
		}
	}
}

// Summaries returns the summaries of the evicted values, in no order.
func (m *Map[K, V, S]) Summaries() iter.Seq2[K, S] {
	return func(yield func(K, S) bool) {
		for k, e := range m.evicted {
			if !yield(k, e.summary) {
				return
			}
		}
	}
}

// Where returns the values, in no order, of which is is true if they are resident, and was of their summary if not. It
// reads only these from the file. The body of the loop may change the Map.
func (m *Map[K, V, S]) Where(is func(v *V) bool, was func(summary S) bool) iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for k, s := range m.resident {
			if is(s.value) && !yield(k, s.value) {
				return
			}
		}
		for k, e := range m.evicted {
			if was(e.summary) && !yield(k, m.Get(k)) {
				return
			}
		}
	}
}

// Evict looks at the next resident values, at most as many as the number most, beginning where the last call ended.
// If unused is set, it evicts those that were not used since they were last looked at, otherwise all. Values that
// the codec cannot evict stay. Evict returns how many values it evicted, and with more whether it stopped because of
// most: more is false after the last value, with an error, and without a File. A value that could not be written to
// the file stays resident.
func (m *Map[K, V, S]) Evict(most int, unused bool) (n int, more bool, err error) {
	if m.file == nil {
		return 0, false, nil
	}
	for range most {
		if m.next >= len(m.order) {
			m.next = 0
			return n, false, nil
		}
		s := m.order[m.next]
		if s.used.Swap(false) && unused {
			m.next++
			continue
		}
		gone, err := m.evict(s)
		if err != nil {
			return n, false, err
		}
		if gone {
			n++ // another one is in its place of the order
		} else {
			m.next++
		}
	}
	return n, true, nil
}

// evict evicts a value, if it can be.
func (m *Map[K, V, S]) evict(s *slot[K, V]) (bool, error) {
	page, summary, can := m.codec.Page(s.key, s.value)
	if !can {
		return false, nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(page)
	if err != nil {
		return false, fmt.Errorf("resident: %w", err)
	}
	p, err := m.file.put(b)
	if err != nil {
		return false, err
	}
	if m.codec.Evicted != nil {
		m.codec.Evicted(s.key, s.value)
	}
	m.drop(s)
	m.evicted[s.key] = evicted[S]{p, summary}
	return true, nil
}

// load returns an evicted value: the copy in recent, or a new one from the file. If keep is set, the copy is or stays
// in recent for other readers; otherwise it is removed from there, and the caller may change it.
func (m *Map[K, V, S]) load(k K, p place, keep bool) *V {
	m.mu.Lock()
	for i := range m.recent {
		if r := &m.recent[i]; r.value != nil && r.place == p && r.key == k {
			v := r.value
			if !keep {
				*r = read[K, V]{}
			}
			m.mu.Unlock()
			return v
		}
	}
	m.mu.Unlock()
	v := m.read(k, p)
	if keep {
		m.mu.Lock()
		m.recent[m.oldest] = read[K, V]{k, p, v}
		m.oldest = (m.oldest + 1) % recentReads
		m.mu.Unlock()
	}
	return v
}

// forget removes what is left of an evicted value, and frees its place in the file.
func (m *Map[K, V, S]) forget(k K, p place) {
	for i := range m.recent {
		if r := &m.recent[i]; r.place == p && r.key == k {
			*r = read[K, V]{}
		}
	}
	m.file.remove(p)
	delete(m.evicted, k)
}

// read reads an evicted value from the file. It panics with ErrUnreadable if it cannot.
func (m *Map[K, V, S]) read(k K, p place) *V {
	m.loads.Add(1)
	page, buffer := m.codec.New(), buffers.Get().(*[]byte)
	b, err := m.file.get(p, *buffer)
	if err == nil {
		err = proto.Unmarshal(b, page) // which copies
		*buffer = b
	}
	giveBack(buffer)
	var v *V
	if err == nil {
		v, err = m.codec.Value(k, page)
	}
	if err != nil {
		panic(fmt.Errorf("%w: %w", ErrUnreadable, err))
	}
	return v
}
