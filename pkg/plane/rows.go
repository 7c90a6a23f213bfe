package plane

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
)

// Rows is the table of a plane's event types. The row of a type, an R of the plane, is the one place that says what
// the plane does with its events: how they are folded, which pages they change, whether they are kept, and so on.
type Rows[R any] struct{ byPayload map[reflect.Type]R }

// Row is the row of one event type.
type Row[R any] struct {
	payload reflect.Type
	row     R
}

// RowOf returns the row of the event type whose payload is a P.
func RowOf[P proto.Message, R any](r R) Row[R] { return Row[R]{reflect.TypeFor[P](), r} }

// NewRows returns the table of some rows. It panics if two are of one event type.
func NewRows[R any](rows ...Row[R]) Rows[R] {
	t := Rows[R]{make(map[reflect.Type]R, len(rows))}
	for _, r := range rows {
		if _, twice := t.byPayload[r.payload]; twice {
			panic(fmt.Sprintf("two rows of %s", r.payload))
		}
		t.byPayload[r.payload] = r.row
	}
	return t
}

// Of returns the row of an event, journal.ErrUnknownEvent if its type has none.
func (t Rows[R]) Of(ev *journal.Event) (R, error) {
	r, ok := t.byPayload[reflect.TypeOf(ev.Payload)]
	if !ok {
		return r, journal.UnknownEvent(ev)
	}
	return r, nil
}

// PayloadOf returns the payload of an event whose row was found by Rows.Of, as the type P of that row.
func PayloadOf[P proto.Message](ev *journal.Event) P {
	return ev.Payload.(P) //nolint:forcetypeassert // Rows.Of has compared it
}
