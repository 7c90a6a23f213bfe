package installation

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

const (
	// bucketName is the key-value bucket in which the processes of an installation report
	// themselves. It is in memory: after a loss they report themselves again.
	bucketName = "quartet-processes"
	// reportTerm is how long a report is valid. A process that was killed counts as running for that long.
	reportTerm = time.Minute
)

// errNoBroker is returned while there is no connection.
var errNoBroker = errors.New("NATS is not reachable")

// Bucket has the reports of the processes of an installation.
type Bucket struct {
	Conn     func() *nats.Conn // nil before the process is connected
	Replicas int
}

// open returns the bucket, which it creates if there is none.
func (b Bucket) open(ctx context.Context) (jetstream.KeyValue, error) {
	nc := b.Conn()
	if nc == nil {
		return nil, errNoBroker
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, bucketName)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: bucketName, Description: "Quartet: which processes run", TTL: reportTerm,
		Storage: jetstream.MemoryStorage, Replicas: max(b.Replicas, 1), History: 1,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = js.KeyValue(ctx, bucketName)
	}
	return kv, err
}

// Put stores the report of a process in place of its previous one.
func (b Bucket) Put(ctx context.Context, report *identityv1.Process) error {
	kv, err := b.open(ctx)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(report)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, report.GetProcessId(), raw)
	return err
}

// Withdraw removes the report of the process with the id, which is about to end. It ignores errors: a report that is
// not removed expires.
func (b Bucket) Withdraw(ctx context.Context, processID string) {
	if kv, err := b.open(ctx); err == nil {
		_ = kv.Delete(ctx, processID)
	}
}

// List returns the processes whose reports are valid.
func (b Bucket) List(ctx context.Context) ([]*identityv1.Process, error) {
	kv, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*identityv1.Process
	for _, id := range ids {
		entry, err := kv.Get(ctx, id)
		if errors.Is(err, jetstream.ErrKeyNotFound) { // it has stopped meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		report := &identityv1.Process{}
		if err := proto.Unmarshal(entry.Value(), report); err != nil {
			return nil, err
		}
		report.ReportedAt = timestamppb.New(entry.Created())
		all = append(all, report)
	}
	return all, nil
}
