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

// Peer is one instance as it describes itself to others.
type Peer struct {
	// Addr is where other instances reach its gRPC server, host:port.
	Addr string `json:"addr"`
	// Name is the name that its certificate must have; empty for the host in Addr.
	Name string `json:"name,omitempty"`
	// Groups are the names of the services whose partitions it takes.
	Groups []string `json:"groups"`
	// Process lets other processes on its machine detect that it has exited; see process.go.
	Process string `json:"process,omitempty"`
	// Leaving means that it hands over its partitions and takes none.
	Leaving bool `json:"leaving,omitempty"`
}

// record is the value of a partition's key.
type record struct {
	Session string `json:"session,omitempty"`
}

// session is what is known of a session.
type session struct {
	Peer
	revision uint64
	seen     time.Time // when this revision was received
}

type part struct {
	record
	revision uint64
	seen     time.Time // when this revision was received
}

// table is the contents of the bucket as far as they were received.
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

// apply applies a change of the bucket and reports whether it was more than a renewal. A session whose value cannot
// be read counts as deleted, and a partition as released.
func (t table) apply(key string, value []byte, revision uint64, gone bool, now time.Time) bool {
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
			return false // this process made a later change, which Group.write applied already
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

// holder returns the session that holds a partition and whether it is alive. A session of which nothing was
// received yet counts as alive for a span, since the initial contents of the bucket arrive one by one.
func (t table) holder(key string, now time.Time, span time.Duration) (string, bool) {
	p := t.parts[key]
	if p.Session == "" || t.ended[p.Session] {
		return p.Session, false
	}
	_, known := t.sessions[p.Session]
	return p.Session, known || now.Sub(p.seen) < span
}

// members returns the sessions that take partitions of a group, in order.
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

// silent returns the sessions that were not renewed for a span.
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

// assign returns which session should hold each of the partitions, "" for all if there are no members. The numbers of
// partitions of two sessions differ by at most one, and no partition moves without need. holders are the present
// ones, "" for none. The result depends on the arguments only, so that all instances agree.
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
			return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(memberHash(group, a), memberHash(group, b)),
				cmp.Compare(a, b))
		})
		out[i] = least
		count[least]++
	}
	return out
}

// memberHash orders the members differently for each group.
func memberHash(group, member string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(group + "\x00" + member)) // never fails
	return h.Sum64()
}
