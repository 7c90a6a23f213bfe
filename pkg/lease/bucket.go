package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// BucketName is the name of the key-value bucket that holds the leases.
const BucketName = "quartet-leases"

// Errors of a Bucket.
var (
	// ErrConflict means that a key is not at the expected revision, and nothing was changed.
	ErrConflict = errors.New("lease: the key has another revision")
	ErrNoKey    = errors.New("lease: there is no such key")
	ErrNoBucket = errors.New("lease: there is no such bucket")
)

// Bucket is where leases are kept: keys with values and revisions, which grow with each change of any key. After an
// error other than ErrConflict a change may have been made. Its methods are safe for concurrent use.
type Bucket interface {
	// Create stores a key that does not exist, and Update one that is at a revision. Both return its new revision.
	Create(ctx context.Context, key string, value []byte) (uint64, error)
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
	// Delete removes a key that is at a revision.
	Delete(ctx context.Context, key string, revision uint64) error
	// Revision returns the revision of a key, or ErrNoKey.
	Revision(ctx context.Context, key string) (uint64, error)
	// Exists returns ErrNoBucket if the bucket was lost.
	Exists(ctx context.Context) error
	// Watch sends the contents of the bucket, then nil, and then each change in order, until ctx ends. It closes the
	// channel if changes may have been missed.
	Watch(ctx context.Context) (<-chan *Change, error)
}

// Change is the value of a key after a change.
type Change struct {
	Key      string
	Value    []byte
	Revision uint64
	Gone     bool // the key was deleted
}

// IsSession reports whether a key is that of a session, which its process updates several times in a term.
func IsSession(key string) bool { return strings.HasPrefix(key, sessionPrefix) }

// natsKV is a bucket of a broker.
type natsKV struct {
	js jetstream.JetStream
	kv jetstream.KeyValue
}

// natsBucket returns a function that creates the bucket, or opens the existing one.
func natsBucket(conn *nats.Conn, replicas int) func(ctx context.Context) (Bucket, error) {
	return func(ctx context.Context) (Bucket, error) {
		js, err := jetstream.New(conn)
		if err != nil {
			return nil, fmt.Errorf("lease: %w", err)
		}
		kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: BucketName, Description: "Quartet: which instance holds which partition",
			Storage: jetstream.MemoryStorage, Replicas: max(replicas, 1), History: 1,
		})
		if errors.Is(err, jetstream.ErrBucketExists) {
			kv, err = js.KeyValue(ctx, BucketName)
		}
		if err != nil {
			return nil, err
		}
		return natsKV{js, kv}, nil
	}
}

// Create implements Bucket.
func (b natsKV) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	revision, err := b.kv.Create(ctx, key, value)
	return revision, conflict(err)
}

// Update implements Bucket.
func (b natsKV) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	revision, err := b.kv.Update(ctx, key, value, revision)
	return revision, conflict(err)
}

// Delete implements Bucket.
func (b natsKV) Delete(ctx context.Context, key string, revision uint64) error {
	return conflict(b.kv.Delete(ctx, key, jetstream.LastRevision(revision)))
}

// Revision implements Bucket.
func (b natsKV) Revision(ctx context.Context, key string) (uint64, error) {
	e, err := b.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, ErrNoKey
	}
	if err != nil {
		return 0, err
	}
	return e.Revision(), nil
}

// Exists implements Bucket.
func (b natsKV) Exists(ctx context.Context) error {
	_, err := b.js.KeyValue(ctx, BucketName)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return ErrNoBucket
	}
	return err
}

// Watch implements Bucket.
func (b natsKV) Watch(ctx context.Context) (<-chan *Change, error) {
	from, err := b.kv.WatchAll(ctx)
	if err != nil {
		return nil, err
	}
	changes := make(chan *Change, 64)
	go func() {
		defer close(changes)
		defer func() { _ = from.Stop() }() // says at most that it was stopped already
		for {
			select {
			case e, open := <-from.Updates():
				if !open {
					return
				}
				select {
				case changes <- changeOf(e):
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return changes, nil
}

// changeOf returns the change that a broker sent; nil if it is the end of the contents.
func changeOf(e jetstream.KeyValueEntry) *Change {
	if e == nil {
		return nil
	}
	return &Change{Key: e.Key(), Value: e.Value(), Revision: e.Revision(), Gone: e.Operation() != jetstream.KeyValuePut}
}

// conflict returns ErrConflict for an error that says that a key is not at the expected revision.
func conflict(err error) error {
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return err
}
