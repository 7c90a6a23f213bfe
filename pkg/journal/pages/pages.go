// Package pages names the parts in which the state of a partition is written to a snapshot.
package pages

import (
	"cmp"

	"google.golang.org/protobuf/proto"
)

// Owner names whom a page is about: an agent, or whatever a plane divides its state by. The zero Owner has what belongs to nobody else.
type Owner struct{ Namespace, ID string }

// Compare orders owners by namespace, then by id.
func (o Owner) Compare(other Owner) int {
	return cmp.Or(cmp.Compare(o.Namespace, other.Namespace), cmp.Compare(o.ID, other.ID))
}

// Encode returns the bytes of a page. The same page always has the same bytes.
func Encode(page proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(page)
}
