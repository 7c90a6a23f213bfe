package journaltest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// Guests is a state whose owners can leave memory: how often each agent came.
type Guests struct {
	came *resident.Map[snapshot.Owner, guest, struct{}]
	File *resident.File // of those that are not in memory
}

type guest struct{ times int }

var _ snapshot.Resident = (*Guests)(nil)

// NewGuests returns an empty state.
func NewGuests() *Guests {
	page := func(_ snapshot.Owner, g *guest) (proto.Message, struct{}, bool) { return g.page(), struct{}{}, true }
	return &Guests{came: resident.New(resident.Codec[snapshot.Owner, guest, struct{}]{
		Page: page, New: func() proto.Message { return &structpb.Value{} },
		Value: func(_ snapshot.Owner, m proto.Message) (*guest, error) {
			return &guest{int(m.(*structpb.Value).GetNumberValue())}, nil
		},
	})}
}

func (g *guest) page() proto.Message { return structpb.NewNumberValue(float64(g.times)) }

// Of returns how often an agent came.
func (s *Guests) Of(o snapshot.Owner) int {
	if g := s.came.Get(o); g != nil {
		return g.times
	}
	return 0
}

// Apply implements journal.State: an agent came.
func (s *Guests) Apply(ev *journal.Event) error {
	o := snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID}
	g := s.came.Edit(o)
	if g == nil {
		g = &guest{}
		s.came.Put(o, g)
	}
	g.times++
	return nil
}

// Owners implements snapshot.State.
func (s *Guests) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	touch(snapshot.Owner{Namespace: ev.Namespace, ID: ev.AgentID})
}

// Page implements snapshot.State.
func (s *Guests) Page(o snapshot.Owner) proto.Message {
	if g := s.came.Peek(o); g != nil {
		return g.page()
	}
	return nil
}

// NewPage implements snapshot.State.
func (s *Guests) NewPage() proto.Message { return &structpb.Value{} }

// AddPage implements snapshot.State.
func (s *Guests) AddPage(o snapshot.Owner, page proto.Message) error {
	s.came.Put(o, &guest{int(page.(*structpb.Value).GetNumberValue())})
	return nil
}

// AllOwners implements snapshot.State.
func (s *Guests) AllOwners(fn func(snapshot.Owner)) {
	for o := range s.came.Keys() {
		fn(o)
	}
}

// UseFile implements snapshot.Resident.
func (s *Guests) UseFile(f *resident.File) {
	s.File = f
	s.came.Use(f)
}

// Evict implements snapshot.Resident.
func (s *Guests) Evict(most int, unused bool) (int, bool, error) { return s.came.Evict(most, unused) }

// Counts implements snapshot.Resident.
func (s *Guests) Counts() resident.Counts { return s.came.Counts() }
