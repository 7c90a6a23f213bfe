package lease

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Peer is one instance, as it presents itself.
type Peer struct {
	// Addr is where its gRPC server is reached by other instances, host:port.
	Addr string `json:"addr"`
	// Name is what its certificate must be of; empty: the host in Addr.
	Name string `json:"name,omitempty"`
	// Groups are the services that it takes partitions of.
	Groups []string `json:"groups"`
	// Process lets others on its machine see that it is over; see process.go.
	Process string `json:"process,omitempty"`
	// Leaving: it hands over and takes nothing.
	Leaving bool `json:"leaving,omitempty"`
}

// record is the value of a partition's key.
type record struct {
	Session string `json:"session,omitempty"`
}

// session is what is known of one.
type session struct {
	Peer
	revision uint64
	seen     time.Time // when this revision was heard of
}

type part struct {
	record
	revision uint64
	seen     time.Time // when this revision was heard of
}

// table is what the bucket says, as far as it was heard.
type table struct {
	sessions map[string]session
	ended    map[string]bool // sessions that were seen to end
	parts    map[string]part // by key
}

func newTable() table {
	return table{sessions: map[string]session{}, ended: map[string]bool{}, parts: map[string]part{}}
}

const (
	sessionPrefix = "session."
	partPrefix    = "part."
)

func partKey(group string, n int) string { return partPrefix + group + "." + strconv.Itoa(n) }

// note takes a change. It reports whether anything but a renewal was in it. What
// cannot be read is as good as gone: its owner will be refused at its next
// renewal.
func (t table) note(key string, value []byte, revision uint64, gone bool, now time.Time) bool {
	switch {
	case strings.HasPrefix(key, sessionPrefix):
		id := strings.TrimPrefix(key, sessionPrefix)
		old, had := t.sessions[id]
		s := session{revision: revision, seen: now}
		if gone || json.Unmarshal(value, &s.Peer) != nil {
			delete(t.sessions, id)
			t.ended[id] = true
			return had
		}
		t.sessions[id] = s
		return !had || old.Leaving != s.Leaving || old.Addr != s.Addr || !slices.Equal(old.Groups, s.Groups)
	case strings.HasPrefix(key, partPrefix):
		if revision < t.parts[key].revision {
			return false // our own change was noted before the bucket told of it
		}
		p := part{revision: revision, seen: now}
		if !gone && json.Unmarshal(value, &p.record) != nil {
			p.record = record{}
		}
		old, had := t.parts[key]
		t.parts[key] = p
		return !had || old.record != p.record
	}
	return false
}

// holder is the session that a partition belongs to. A session that nothing was
// heard of yet counts as alive for a span: what is in the bucket at the start is
// not told in one piece, and a renewal in that very moment is told late.
func (t table) holder(key string, now time.Time, span time.Duration) (string, bool) {
	p := t.parts[key]
	if p.Session == "" || t.ended[p.Session] {
		return p.Session, false
	}
	_, known := t.sessions[p.Session]
	return p.Session, known || now.Sub(p.seen) < span
}

// members are the sessions that take partitions of a group, in order.
func (t table) members(group string) []string {
	var ids []string
	for id, s := range t.sessions {
		if !s.Leaving && slices.Contains(s.Groups, group) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// silent are the sessions that were not renewed for a span.
func (t table) silent(now time.Time, span time.Duration) []string {
	var ids []string
	for id, s := range t.sessions {
		if now.Sub(s.seen) >= span {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// assign says who should hold each of n partitions: everybody as many as the
// others, give or take one, and nothing changes hands that need not. holders
// are those of now, "" for none. Everybody who sees the same bucket comes to the
// same result.
func assign(group string, members []string, holders []string) []string {
	out := make([]string, len(holders))
	if len(members) == 0 {
		return out
	}
	each, more := len(holders)/len(members), len(holders)%len(members)
	count := make(map[string]int, len(members))
	for _, m := range members {
		count[m] = 0
	}
	for i, h := range holders {
		n, member := count[h]
		switch {
		case !member || n > each || n == each && more == 0:
			continue
		case n == each:
			more--
		}
		out[i] = h
		count[h]++
	}
	byLoad := slices.Sorted(maps.Keys(count))
	for i := range out {
		if out[i] != "" {
			continue
		}
		least := slices.MinFunc(byLoad, func(a, b string) int {
			// Not by name alone: whatever is held as a whole would be the same member's.
			return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(lot(group, a), lot(group, b)), cmp.Compare(a, b))
		})
		out[i] = least
		count[least]++
	}
	return out
}

func lot(group, member string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(group + "\x00" + member)) // never fails
	return h.Sum64()
}
