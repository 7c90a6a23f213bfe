package journaltest

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
)

var _ journal.Paged = (*State)(nil)

// Owners implements journal.Paged: each key has a page, and that of nobody has the number of the last event.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	touch(snapshot.Owner{})
	if m, ok := ev.Payload.(interface{ GetReason() string }); ok {
		touch(snapshot.Owner{ID: m.GetReason()})
	}
}

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	if o == (snapshot.Owner{}) {
		return &structpb.Struct{Fields: map[string]*structpb.Value{"seq": structpb.NewNumberValue(float64(s.Seq))}}
	}
	at, values := &structpb.ListValue{}, &structpb.ListValue{}
	for i, put := range s.Log {
		if key, value, _ := strings.Cut(put, "="); key == o.ID {
			at.Values, values.Values = append(at.Values, structpb.NewNumberValue(float64(i))),
				append(values.Values, structpb.NewStringValue(value))
		}
	}
	if len(at.Values) == 0 {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"at":     structpb.NewListValue(at),
		"values": structpb.NewListValue(values),
	}}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &structpb.Struct{} }

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	fields := page.(*structpb.Struct).GetFields()
	if o == (snapshot.Owner{}) {
		s.Seq = uint64(fields["seq"].GetNumberValue())
		return nil
	}
	values := fields["values"].GetListValue().GetValues()
	if len(values) == 0 || s.Puts[o.ID] > 0 {
		return errors.New("a key without puts, or twice")
	}
	for i, at := range fields["at"].GetListValue().GetValues() {
		n, put := int(at.GetNumberValue()), fmt.Sprintf("%s=%s", o.ID, values[i].GetStringValue())
		for len(s.Log) <= n {
			s.Log = append(s.Log, "")
		}
		s.Log[n] = put
		s.Puts[o.ID]++
		s.Values[put]++
	}
	return nil
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	if s.Seq > 0 {
		fn(snapshot.Owner{})
	}
	for key := range s.Puts {
		fn(snapshot.Owner{ID: key})
	}
}
