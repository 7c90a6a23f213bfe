package witness

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/retry"
)

// BucketName is the name of the bucket. A key is the partition, such as work.3, and its value a framelog.End.
const BucketName = "quartet-witness"

const (
	// Interval is how often the bucket is written.
	Interval = time.Second
	// term bounds one request.
	term = 3 * time.Second
)

// Bucket is the bucket as one process uses it. Use OpenBucket.
type Bucket struct {
	nc       *nats.Conn
	replicas int
	logger   *zap.Logger
	kv       jetstream.KeyValue
	watcher  jetstream.KeyWatcher
	stop     chan struct{}
	ended    chan struct{}
	once     sync.Once

	mu       sync.Mutex
	stored   map[string]bucketEntry  // what the bucket has, as far as it was received
	recorded map[string]framelog.End // what is to be written
	failing  bool                    // the last write failed, and that was logged
}

// bucketEntry is the value of a key.
type bucketEntry struct {
	end      framelog.End
	revision uint64
}

// newer reports whether a is a later end of a partition's log than b.
func newer(a, b framelog.End) bool {
	return a.Incarnation > b.Incarnation || a.Incarnation == b.Incarnation && a.Seq > b.Seq
}

func bucketKey(plane string, partition int) string { return plane + "." + strconv.Itoa(partition) }

// OpenBucket opens the bucket, which it creates if there is none, and returns once its contents were read. It tries
// until ctx ends.
func OpenBucket(ctx context.Context, nc *nats.Conn, replicas int, logger *zap.Logger) (*Bucket, error) {
	b := &Bucket{
		nc: nc, replicas: replicas, logger: logger, stop: make(chan struct{}), ended: make(chan struct{}),
		stored: map[string]bucketEntry{}, recorded: map[string]framelog.End{},
	}
	pacer := retry.New(50*time.Millisecond, time.Second)
	for {
		err := b.openAndRead(ctx)
		if err == nil {
			break
		}
		if pacer.Wait(ctx) != nil {
			return nil, fmt.Errorf("witness: bucket %s: %w", BucketName, err)
		}
	}
	go b.run()
	return b, nil
}

// openAndRead opens the bucket and reads what it has.
func (b *Bucket) openAndRead(ctx context.Context) error {
	js, err := jetstream.New(b.nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	// b.kv is used while the bucket is made again, so it is set only once that has succeeded.
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: BucketName, Description: "Quartet: how far journals were written", Storage: jetstream.FileStorage,
		Replicas: max(b.replicas, 1), History: 1,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = js.KeyValue(ctx, BucketName)
	}
	if err != nil {
		return err
	}

	// Read all entries. The watcher ends with its context, so that must not be ctx.
	w, err := kv.WatchAll(context.Background())
	if err != nil {
		return err
	}
	for {
		select {
		case e, open := <-w.Updates():
			if !open {
				return errors.New("the bucket cannot be watched")
			}
			if e == nil { // every entry that the bucket had was received
				b.kv, b.watcher = kv, w
				return nil
			}
			b.observe(e)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), w.Stop())
		}
	}
}

// observe records an entry of the bucket in b.stored, unless that has the same or a later revision. A deletion, or a
// value that cannot be read, counts as the zero End.
func (b *Bucket) observe(e jetstream.KeyValueEntry) {
	end, err := framelog.ParseEnd(string(e.Value()))
	if err != nil || e.Operation() != jetstream.KeyValuePut {
		end = framelog.End{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stored[e.Key()].revision < e.Revision() {
		b.stored[e.Key()] = bucketEntry{end, e.Revision()}
	}
}

// run writes what was recorded and reads what others write, until Close.
func (b *Bucket) run() {
	defer close(b.ended)
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	updates := b.watcher.Updates()
	for {
		select {
		case e, open := <-updates:
			if !open {
				updates = nil // the bucket is read again below
			} else if e != nil {
				b.observe(e)
			}
		case <-tick.C:
			if (!b.writeRecorded() || updates == nil) && b.reopen(updates == nil) {
				updates = b.watcher.Updates()
			}
		case <-b.stop:
			b.writeRecorded()
			_ = b.watcher.Stop() // says at most that the connection is closed
			return
		}
	}
}

// reopen creates the bucket again if it is gone, and reads one that is there if it is not watched any more. It reports
// whether it did one of these: then b.watcher is a new one. Only run calls it. What was recorded and is not in the
// bucket is written by the next writeRecorded.
func (b *Bucket) reopen(unwatched bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), term)
	defer cancel()
	js, err := jetstream.New(b.nc)
	if err != nil {
		return false
	}
	if _, err = js.KeyValue(ctx, BucketName); !errors.Is(err, jetstream.ErrBucketNotFound) && !unwatched {
		return false
	}
	_ = b.watcher.Stop() // it watches what is gone
	b.mu.Lock()
	clear(b.stored)
	b.mu.Unlock()
	return b.openAndRead(ctx) == nil
}

// writeRecorded writes the recorded ends that are newer than what the bucket has, and returns false if it could not
// write one of them. It is no failure if another process wrote an end of the same partition meanwhile: the next write
// compares the recorded end with that one.
func (b *Bucket) writeRecorded() bool {
	// Determine what is newer. What is not needs no write.
	b.mu.Lock()
	due, seen := map[string]framelog.End{}, map[string]bucketEntry{}
	for key, end := range b.recorded {
		seen[key] = b.stored[key]
		if newer(end, seen[key].end) {
			due[key] = end
		} else {
			delete(b.recorded, key)
		}
	}
	b.mu.Unlock()

	var failed error
	for key, end := range due {
		if err := b.put(key, end, seen[key].revision); err != nil {
			failed = err
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if failed != nil && !b.failing {
		b.logger.Warn("witness: how far journals were written could not be stored for other machines; trying again",
			zap.Error(failed))
	}
	b.failing = failed != nil
	return !b.failing
}

// put writes a record if the bucket still has the revision that was seen. If another process has written meanwhile,
// put observes its record and returns nil; the next write compares the two.
func (b *Bucket) put(key string, end framelog.End, revision uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), term)
	defer cancel()
	written, err := b.kv.Update(ctx, key, []byte(end.String()), revision)
	var refused *jetstream.APIError
	switch {
	case errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		e, err := b.kv.Get(ctx, key)
		if err != nil {
			return err
		}
		b.observe(e)
		return nil
	case err != nil:
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stored[key].revision < written {
		b.stored[key] = bucketEntry{end, written}
	}
	return nil
}

// Close writes what was recorded and ends. Nothing may be recorded afterwards. The connection must still be open. It is
// idempotent.
func (b *Bucket) Close() {
	b.once.Do(func() { close(b.stop) })
	<-b.ended
}

// Of returns the witness of a partition. Its Last is the newest record of local and the bucket; its Record is for
// both.
func (b *Bucket) Of(plane string, partition int, local framelog.Witness) framelog.Witness {
	return bucketWitness{b, bucketKey(plane, partition), local}
}

// bucketWitness implements framelog.Witness.
type bucketWitness struct {
	bucket *Bucket
	key    string
	local  framelog.Witness
}

// Last returns the newest record of this and of other processes. If that of local cannot be read, it also returns the
// error.
func (w bucketWitness) Last() (framelog.End, error) {
	end, err := w.local.Last()
	w.bucket.mu.Lock()
	defer w.bucket.mu.Unlock()
	if stored := w.bucket.stored[w.key].end; newer(stored, end) {
		end = stored
	}
	return end, err
}

// Record records an end here at once, and in the bucket within Interval.
func (w bucketWitness) Record(end framelog.End) {
	w.local.Record(end)
	w.bucket.mu.Lock()
	defer w.bucket.mu.Unlock()
	if newer(end, w.bucket.recorded[w.key]) {
		w.bucket.recorded[w.key] = end
	}
}

// Or returns a witness whose Last is the newer of local's Last and known: that of the later incarnation, then of the
// higher sequence number. Use it only to read: its Record is that of local.
func Or(local framelog.Witness, known framelog.End) framelog.Witness { return either{local, known} }

// either implements framelog.Witness.
type either struct {
	framelog.Witness
	known framelog.End
}

// Last implements framelog.Witness.
func (e either) Last() (framelog.End, error) {
	end, err := e.Witness.Last()
	if newer(e.known, end) {
		end = e.known
	}
	return end, err
}

// ReadBucket returns the records of the bucket by framelog.PartitionName; an empty map if there is no bucket.
func ReadBucket(ctx context.Context, nc *nats.Conn) (map[string]framelog.End, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, BucketName)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return map[string]framelog.End{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("witness: bucket %s: %w", BucketName, err)
	}
	b := &Bucket{stored: map[string]bucketEntry{}}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("witness: bucket %s: %w", BucketName, err)
	}
	defer func() { _ = w.Stop() }()
	for e := range w.Updates() {
		if e == nil { // every entry that the bucket had was received
			return b.records(), nil
		}
		b.observe(e)
	}
	return nil, fmt.Errorf("witness: bucket %s cannot be read: %w", BucketName, ctx.Err())
}

// BucketPartitions returns how many partitions of a plane are in known, counted up to the last that is.
func BucketPartitions(known map[string]framelog.End, plane string) (n int) {
	for name := range known {
		number, found := strings.CutPrefix(name, plane+"/")
		if i, err := strconv.Atoi(number); found && err == nil {
			n = max(n, i+1)
		}
	}
	return n
}

// records returns the records that were observed, by framelog.PartitionName. Nothing may observe others meanwhile.
func (b *Bucket) records() map[string]framelog.End {
	records := map[string]framelog.End{}
	for key, e := range b.stored {
		plane, number, _ := strings.Cut(key, ".")
		if n, err := strconv.Atoi(number); err == nil && e.end.Seq > 0 {
			records[framelog.PartitionName(plane, n)] = e.end
		}
	}
	return records
}

// RemoveBucket removes the bucket, if there is one. Call it for a restore, since the records are not true of journals
// that are restored.
func RemoveBucket(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := js.DeleteKeyValue(ctx, BucketName); err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) &&
		!errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("witness: bucket %s: %w", BucketName, err)
	}
	return nil
}
