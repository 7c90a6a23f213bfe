package journal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// people is a state of which owners can be erased: what each agent said.
type people struct {
	said    map[snapshot.Owner][]string
	deleted map[snapshot.Owner]time.Time
	erased  *event.ErasedSet
}

var (
	_ journal.Erasable  = (*people)(nil)
	_ journal.Retaining = (*people)(nil)
)

func newPeople() *people {
	return &people{said: map[snapshot.Owner][]string{}, deleted: map[snapshot.Owner]time.Time{}}
}

const deletion = "delete"

// Apply implements journal.State.
func (s *people) Apply(ev *journal.Event) error {
	o, text := snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID}, ev.Payload.(*errdetails.ErrorInfo).GetDomain()
	if text == deletion {
		s.deleted[o] = ev.CreatedAt
	}
	s.said[o] = append(slices.Clone(s.said[o]), text)
	return nil
}

func (s *people) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	touch(snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID})
}

func (s *people) Page(o snapshot.Owner) proto.Message {
	if len(s.said[o]) == 0 {
		return nil
	}
	page := &structpb.ListValue{}
	for _, text := range append([]string{s.deleted[o].Format(time.RFC3339Nano)}, s.said[o]...) {
		page.Values = append(page.Values, structpb.NewStringValue(text))
	}
	return page
}

func (s *people) NewPage() proto.Message { return &structpb.ListValue{} }

func (s *people) AddPage(o snapshot.Owner, page proto.Message) error {
	for i, v := range page.(*structpb.ListValue).GetValues() {
		if i > 0 {
			s.said[o] = append(s.said[o], v.GetStringValue())
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, v.GetStringValue())
		if err != nil {
			return err
		}
		if !at.IsZero() {
			s.deleted[o] = at
		}
	}
	return nil
}

func (s *people) AllOwners(fn func(snapshot.Owner)) {
	for o := range s.said {
		fn(o)
	}
}

func (s *people) UseErased(erased *event.ErasedSet) { s.erased = erased }

func (s *people) DeletedBefore(before time.Time) (all []snapshot.Owner) {
	for o, at := range s.deleted {
		if at.Before(before) {
			all = append(all, o)
		}
	}
	return all
}

func (s *people) Erase(is func(namespace, id string) bool, touch func(snapshot.Owner)) {
	for o := range s.deleted {
		if is(o.Namespace, o.ID) {
			touch(o)
			delete(s.said, o)
			delete(s.deleted, o)
		}
	}
}

// Needs implements journal.Retaining: a farewell is needed.
func (s *people) Needs(ev *journal.Event, _ time.Time) bool {
	return strings.Contains(ev.Payload.(*errdetails.ErrorInfo).GetDomain(), "farewell")
}

// village is what a partition of people is stored in.
type village struct {
	live  *journaltest.MemLog
	dir   string
	store *journaltest.MemSnapshots
	// calls is how many calls of the stores and of the log still succeed; negative: all do. effect says that the first
	// one that fails has its effect. failed is closed then.
	mu     sync.Mutex
	calls  int
	made   int
	effect bool
	failed chan struct{}
}

func newVillage(t *testing.T) *village {
	return &village{
		live: journaltest.NewMemLog(), dir: t.TempDir(), store: journaltest.NewMemSnapshots(), calls: -1,
		failed: make(chan struct{}),
	}
}

var errDead = errors.New("the process has ended")

// call makes a call, unless the process has ended.
func (v *village) call(do func() error) error {
	v.mu.Lock()
	v.made++
	left := v.calls
	if v.calls > 0 {
		v.calls--
	} else if v.calls == 0 {
		select {
		case <-v.failed:
			v.mu.Unlock()
			return errDead
		default:
			close(v.failed)
		}
	}
	v.mu.Unlock()
	if left == 0 {
		if v.effect {
			_ = do()
		}
		return errDead
	}
	return do()
}

// log returns the log with its archive.
func (v *village) log() *archive.Log {
	return archive.NewLog(dyingLive{v.live, v}, dyingStore{archive.NewDirectory(v.dir, "test", 0), v}, "test/0")
}

// open opens the partition.
func (v *village) open(t *testing.T) *journal.Partition[*people] {
	t.Helper()
	return must.Value(v.tryOpen(t))(t)
}

func (v *village) tryOpen(t *testing.T) (*journal.Partition[*people], error) {
	t.Helper()
	v.store.Fail = func(string) error { return v.call(func() error { return nil }) }
	return journal.Open(t.Context(), journal.Config[*people]{
		Log: v.log(), Plane: "test", New: newPeople, Registry: journaltest.Registry(), NewID: id.New().New,
		Logger: zap.NewNop(), Snapshots: v.store, SnapshotBytes: 1500, SegmentSize: 4000,
	})
}

// say lets an agent say something.
func say(t *testing.T, p *journal.Partition[*people], agent, text, request string) error {
	t.Helper()
	_, _, err := journal.Do(t.Context(), p, journal.Op[*people, string]{
		Method: "Say", Actor: journaltest.Actor, AgentID: agent, RequestID: request, Args: &errdetails.ErrorInfo{
			Domain: text,
		},
		Decide: func(s *people, _ journal.Env) (journal.Decision[string], error) {
			if s.erased.Has("default", agent) {
				return journal.Decision[string]{}, fault.AgentDeleted.Newf("%s is deleted", agent)
			}
			return journal.Decision[string]{
				Events: []*journal.Event{{Payload: &errdetails.ErrorInfo{Reason: "said", Domain: text}}},
			}, nil
		},
		Answer: journal.AnswerOf(func(m *errdetails.ErrorInfo) string { return m.GetDomain() }),
	})
	return err
}

// live lets ada and bob talk, and deletes ada. The segments and snapshots of it are many.
func (v *village) talk(t *testing.T, p *journal.Partition[*people]) {
	t.Helper()
	for i := range 6 {
		require.NoError(t, say(t, p, "ada", fmt.Sprintf("what ada said %d %s", i, strings.Repeat("a", 300)),
			fmt.Sprint("ada", i)))
		require.NoError(t, say(t, p, "bob", fmt.Sprintf("what bob said %d %s", i, strings.Repeat("b", 300)),
			fmt.Sprint("bob", i)))
		require.NoError(t, p.SettleSnapshot(t.Context()))
	}
	require.NoError(t, say(t, p, "ada", deletion, ""))
	require.NoError(t, say(t, p, "bob", "farewell ada's friend", ""))
}

// found returns whether a text is anywhere in what is stored.
func (v *village) found(t *testing.T, text string) bool {
	t.Helper()
	all := journaltest.ArchiveContent(t, v.dir)
	segments := must.Value(v.live.Segments(t.Context()))(t)
	require.NoError(t, v.live.Scan(t.Context(), segments[0].First, func(_ uint64, f framelog.Frame) error {
		all = append(all, f.Body...)
		return nil
	}))
	v.store.Fail = nil
	numbers := must.Value(v.store.Numbers(t.Context()))(t)
	for _, n := range numbers {
		b := must.Value(v.store.Get(t.Context(), n))(t)
		all = append(all, must.Value(s2.Decode(nil, b))(t)...)
	}
	return strings.Contains(string(all), text)
}

// saidOf returns what an agent said, as the state has it.
func saidOf(t *testing.T, p *journal.Partition[*people], agent string) []string {
	t.Helper()
	out, _, err := journal.View(t.Context(), p, func(s *people) ([]string, error) {
		return slices.Clone(s.said[snapshot.Owner{Namespace: "default", ID: agent}]), nil
	})
	require.NoError(t, err)
	return out
}

// erasedWholly requires that nothing of ada is left, and all of bob.
// If forgotten, a request of hers may be remembered no more.
func (v *village) erasedWholly(t *testing.T, p *journal.Partition[*people], bob []string, forgotten bool) {
	t.Helper()
	require.Nil(t, saidOf(t, p, "ada"))
	require.Equal(t, bob, saidOf(t, p, "bob"))
	require.ErrorIs(t, say(t, p, "ada", "again", ""), fault.AgentDeleted)
	require.NoError(t, say(t, p, "bob", "what bob said 3 "+strings.Repeat("b", 300), "bob3"),
		"the request is remembered")
	require.Equal(t, bob, saidOf(t, p, "bob"))
	err := say(t, p, "ada", "what ada said 3 "+strings.Repeat("a", 300), "ada3")
	require.True(t, errors.Is(err, fault.NotFound) || forgotten && errors.Is(err, fault.AgentDeleted), err)
	require.NoError(t, p.SettleSnapshot(t.Context()))
	require.False(t, v.found(t, "what ada said"))
	require.False(t, v.found(t, `"ada"`))
	require.True(t, v.found(t, "what bob said 0"))
	journaltest.ArchiveFrames(t, v.log(), "test/0") // they continue each other
	require.NoError(t, p.Close(t.Context()))
	for _, snapshots := range []bool{true, false} { // the log alone gives the same state
		store := v.store
		if !snapshots {
			v.store = journaltest.NewMemSnapshots()
		}
		p = v.open(t)
		require.Nil(t, saidOf(t, p, "ada"))
		require.Equal(t, bob, saidOf(t, p, "bob"))
		require.ErrorIs(t, say(t, p, "ada", "again", ""), fault.AgentDeleted)
		require.NoError(t, p.Close(t.Context()))
		v.store = store
	}
}

func TestErase(t *testing.T) {
	v := newVillage(t)
	p := v.open(t)
	v.talk(t, p)
	bob := saidOf(t, p, "bob")
	n := must.Value(p.Erase(t.Context(), time.Now().Add(-time.Hour), nil))(t)
	require.Zero(t, n, "it was deleted later")
	require.Len(t, saidOf(t, p, "ada"), 7)

	n = must.Value(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t)
	require.EqualValues(t, 7, n)
	all := must.Value(snapshot.Stored(t.Context(), v.store, "test/0"))(t)
	require.EqualValues(t, 4, all[0].Manifest.GetFormat(), "which earlier versions refuse")
	require.NotZero(t, all[0].Manifest.GetErasedThrough())
	before := v.made
	n = must.Value(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t)
	require.Zero(t, n)
	require.Equal(t, before, v.made, "there is nothing to do")
	v.erasedWholly(t, p, bob, false)

	p = v.open(t)
	before = v.made
	n = must.Value(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t)
	require.Zero(t, n)
	require.Equal(t, before, v.made, "that it was done is in the snapshot")
	require.NoError(t, p.Close(t.Context()))
}

// TestEraseEndsAnywhere ends the process at each call of the log, of the snapshots and of the archive, with and without
// the effect of that call. Whoever opens the partition then can erase what is left, and others lose nothing, also if
// all snapshots are lost: of whoever was erased the log has a part of the events then, and the state nothing.
func TestEraseEndsAnywhere(t *testing.T) {
	stride := proc.Scale(5, 1)
	if testing.Short() {
		stride = 12
	}
	for _, c := range []struct{ effect, lost bool }{{false, false}, {true, false}, {true, true}} {
		effect := c.effect
		calls := 0
		for reached := true; reached; calls += stride {
			v := newVillage(t)
			p := v.open(t)
			v.talk(t, p)
			bob := saidOf(t, p, "bob")
			require.NoError(t, p.SettleSnapshot(t.Context()))
			v.mu.Lock()
			v.calls, v.effect = calls, effect
			v.mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := p.Erase(ctx, time.Now().Add(time.Hour), nil)
				ended <- err
			}()
			select {
			case <-v.failed:
				cancel()
				<-ended
			case err := <-ended:
				require.NoError(t, err)
				reached = false
			}
			cancel()
			closing, end := context.WithCancel(t.Context())
			end()
			_ = p.Close(closing) // as a process that is killed

			v.mu.Lock()
			v.calls = -1
			v.mu.Unlock()
			if c.lost {
				v.store = journaltest.NewMemSnapshots()
			}
			p = v.open(t)
			require.Equal(t, bob, saidOf(t, p, "bob"))
			must.Value(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t, "after %d calls", calls)
			v.erasedWholly(t, p, bob, c.lost)
		}
		require.Greater(t, calls, 20)
	}
}

// TestEraseNeedsAnArchive: what cannot be erased stays as it is, and says so.
func TestEraseNeedsAnArchive(t *testing.T) {
	v := newVillage(t)
	p := must.Value(journal.Open(t.Context(), journal.Config[*people]{
		Log: v.live, Plane: "test", New: newPeople, Registry: journaltest.Registry(), NewID: id.New().New,
		Snapshots: v.store, SegmentSize: 4000,
	}))(t)
	v.talk(t, p)
	must.Refuse(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t, journal.ErrNotErasable)
	require.Len(t, saidOf(t, p, "ada"), 7)
	require.NoError(t, p.Close(t.Context()))
}

type (
	dyingLive struct {
		archive.Live
		*village
	}
	dyingStore struct {
		archive.Store
		*village
	}
	dyingDraft struct {
		archive.Draft
		*village
	}
)

func (l dyingLive) Append(ctx context.Context, expect uint64, f framelog.Frame) (seq uint64, err error) {
	err = l.call(func() (err error) { seq, err = l.Live.Append(ctx, expect, f); return err })
	return seq, err
}

func (l dyingLive) Prepare(ctx context.Context, number uint64) (first uint64, err error) {
	err = l.call(func() (err error) { first, err = l.Live.Prepare(ctx, number); return err })
	return first, err
}

func (l dyingLive) Drop(ctx context.Context, number uint64) error {
	return l.call(func() error { return l.Live.Drop(ctx, number) })
}

func (s dyingStore) Begin(ctx context.Context, segment uint64) (d archive.Draft, err error) {
	err = s.call(func() (err error) { d, err = s.Store.Begin(ctx, segment); return err })
	return dyingDraft{d, s.village}, err
}

func (s dyingStore) Remove(ctx context.Context, name string) error {
	return s.call(func() error { return s.Store.Remove(ctx, name) })
}

func (s dyingStore) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	return s.call(func() error { return s.Store.ReplaceCatalog(ctx, version, content) })
}

func (d dyingDraft) Add(ctx context.Context, object []byte) (at uint64, err error) {
	err = d.call(func() (err error) { at, err = d.Draft.Add(ctx, object); return err })
	return at, err
}

func (d dyingDraft) Commit(ctx context.Context) (name string, err error) {
	err = d.call(func() (err error) { name, err = d.Draft.Commit(ctx); return err })
	return name, err
}
