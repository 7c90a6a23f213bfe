package snapshot

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/requests"
)

// Verify reads the newest snapshot of a partition, and returns an error if there is none, or if it cannot be read. It
// does not look whether the log announces the snapshot.
func Verify(ctx context.Context, store Store, partition string) error {
	snapshots, err := Stored(ctx, store, partition)
	if err != nil {
		return err
	}
	if len(snapshots) == 0 {
		return fmt.Errorf("snapshot: %w: there is none of %s", ErrNoObject, partition)
	}
	if _, err = Read(ctx, store, snapshots[0], nil, nowhere{}); err != nil {
		return fmt.Errorf("the newest snapshot of %s cannot be read: %w", partition, err)
	}
	return nil
}

// nowhere is an Into that drops everything.
type nowhere struct{}

// DecodePage implements Into.
func (nowhere) DecodePage([]byte) (proto.Message, error) { return nil, nil } //nolint:nilnil // nobody reads it

// AddPage implements Into.
func (nowhere) AddPage(Owner, proto.Message) error { return nil }

// AddRequest implements Into.
func (nowhere) AddRequest(requests.Key, requests.Entry) {}

// AddFrame implements Into.
func (nowhere) AddFrame(Frame) {}
