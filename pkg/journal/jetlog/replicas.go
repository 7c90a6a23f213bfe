package jetlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/retry"
)

// replicaTerm is for how long a replica that turned out to be damaged is not read from.
const replicaTerm = 10 * time.Minute

// incompleteTerm is the same of a replica that did not deliver. It may be far behind, or starting.
const incompleteTerm = 30 * time.Second

// placements is how often a consumer is placed until it is at a server that suits. NATS chooses the server: of three,
// of which one suits, all attempts miss it once in 10⁷ times.
const placements = 40

// ErrIncomplete means that a replica does not deliver frames that its leader has.
var ErrIncomplete = errors.New("jetlog: the replica does not deliver what its leader has")

// replicas are those of one stream that are not read from for now, because they are damaged or did not deliver.
type replicas struct {
	mu      sync.Mutex
	damaged map[string]time.Time // until when, by the name of the server
}

// avoid records that the replica on a server must not be read from for the duration of term, and returns the number
// of replicas for which that holds now.
func (r *replicas) avoid(server string, term time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.damaged == nil {
		r.damaged = map[string]time.Time{}
	}
	now := time.Now()
	maps.DeleteFunc(r.damaged, func(_ string, until time.Time) bool { return now.After(until) })
	r.damaged[server] = now.Add(term)
	return len(r.damaged)
}

// avoided reports whether the replica on a server must not be read from now (avoid).
func (r *replicas) avoided(server string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, known := r.damaged[server]
	if known && time.Now().After(until) {
		delete(r.damaged, server)
		known = false
	}
	return known
}

// forget makes all replicas be read from again.
func (r *replicas) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.damaged)
}

// read calls fn with the frames from from on, up to last, or indefinitely if last is 0, and returns where to continue.
// An error of fn ends it and is returned, except that frames which fn refuses with a *framelog.Broken are read again
// from the other replicas of the stream. A damaged replica is reported to onDamage when another one is tried in its
// place.
func (s *segment) read(ctx context.Context, from, last uint64, fn func(uint64, framelog.Frame) error) (uint64, error) {
	pacer := retry.New(100*time.Millisecond, time.Second)
	for n := 1; ; n++ {
		next, replica, err := s.readOnce(ctx, from, last, fn)
		if next > from {
			from, n = next, 1
			pacer.Reset()
		}
		if isInterrupted(err) && n < interruptions && pacer.Wait(ctx) == nil {
			continue
		}

		// The replica is damaged or did not deliver. Avoid it, and read from another one if there is any.
		damage, term := broken(err), replicaTerm
		switch {
		case replica == "" || ctx.Err() != nil || damage == nil && !errors.Is(err, ErrIncomplete):
			return from, err // nil too: everything up to last was read
		case damage == nil:
			term = incompleteTerm
		}
		if s.replicas.avoid(replica, term) >= s.copies() {
			s.replicas.forget()
			return from, err // no replica has it
		}
		if damage != nil {
			s.onDamage(replica, damage)
		}
	}
}

// interruptions is how many interruptions of a reader in a row, without a frame in between, end it.
const interruptions = 10

// interruptedError says that a consumer was lost and could not be made again.
type interruptedError struct{ error }

func (e *interruptedError) Unwrap() error { return e.error }

// isInterrupted reports whether reading can be continued with another consumer.
func isInterrupted(err error) bool {
	return errors.As(err, new(*interruptedError)) && !errors.Is(err, jetstream.ErrStreamNotFound)
}

// broken returns the *framelog.Broken in err, or nil.
func broken(err error) error {
	var b *framelog.Broken
	if errors.As(err, &b) {
		return b
	}
	return nil
}

// copies returns how many replicas the segment has.
func (s *segment) copies() int { return s.stored.CachedInfo().Config.Replicas }

// readOnce calls fn as read does, with what one replica that is not avoided delivers, and does not try again. It also
// returns the server of that replica, "" outside of a cluster.
func (s *segment) readOnce(ctx context.Context, from, last uint64, fn func(uint64, framelog.Frame) error) (next uint64,
	replica string, err error,
) {
	cons, err := s.place(ctx, from, func(server string) bool { return !s.replicas.avoided(server) })
	if err != nil {
		return from, "", fmt.Errorf("jetlog: read: %w", err)
	}
	info := cons.CachedInfo()
	if from == last && info.NumPending == 0 {
		err = ErrIncomplete // one frame is looked for, and the replica has nothing from there on
	} else {
		next, err = read(ctx, cons, "", from, last, fn)
		info = cons.CachedInfo() // the client may have made it again elsewhere
	}
	if info.Cluster != nil {
		replica = info.Cluster.Leader
	}
	s.remove(info)
	return next, replica, err
}

// place returns a consumer of the frames from from on, in a cluster at a server that suits.
func (s *segment) place(ctx context.Context, from uint64, suits func(server string) bool) (jetstream.Consumer, error) {
	for n := 1; ; n++ {
		// An attempt that was not answered may have made a consumer, which ends by itself.
		cons, err := Patiently(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
			return s.js.OrderedConsumer(ctx, s.Stream(), jetstream.OrderedConsumerConfig{
				FilterSubjects:    []string{s.Subject()},
				DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
				OptStartSeq:       max(from, 1),
				InactiveThreshold: time.Minute,
				// Where the client makes its consumer again it looks at no context, so it may try once (10 s at most),
				// and this package again. Ending it by Stop meanwhile would leave the new consumer's goroutines
				// running.
				MaxResetAttempts: 1,
			})
		})
		if err != nil {
			return nil, err
		}
		info := cons.CachedInfo()
		if info.Cluster == nil || suits(info.Cluster.Leader) {
			return cons, nil
		}
		s.remove(info)
		if n == placements {
			return nil, fmt.Errorf("%d consumers in a row were placed at servers that do not suit", n)
		}
	}
}

// remove removes a consumer that is not used any more. The server would do so after a minute; whoever tries again and
// again to load a partition would have too many until then.
func (s *segment) remove(consumer *jetstream.ConsumerInfo) {
	_ = s.nc.Publish("$JS.API.CONSUMER.DELETE."+s.Stream()+"."+consumer.Name, nil) // without an answer
}

// getElsewhere gets a frame that the leader does not have. It asks the other replicas if the leader's log
// reaches seq or further, and reports damage if one has the frame. It returns framelog.ErrGone if all replicas
// answered and none has the frame, and framelog.ErrNoFrame if that is not known or the log ends before seq.
func (s *segment) getElsewhere(ctx context.Context, seq uint64) (framelog.Frame, error) {
	missing := fmt.Errorf("%w: %d", framelog.ErrNoFrame, seq)
	info, err := s.info(ctx)
	if err != nil || info.Cluster == nil || seq > info.State.LastSeq {
		return framelog.Frame{}, errors.Join(missing, err)
	}

	// Ask one replica after the other, until all are avoided; the leader counts as asked. readOnce does not choose one
	// that is avoided, which may be one that was avoided before and is not asked.
	lastAsked, asked := info.Cluster.Leader, 1
	for ; s.replicas.avoid(lastAsked, replicaTerm) < info.Config.Replicas; asked++ {
		var found *framelog.Frame
		_, replica, err := s.readOnce(ctx, seq, seq, func(foundSeq uint64, f framelog.Frame) error {
			if foundSeq == seq {
				found = &f
			}
			return nil
		})
		if found != nil {
			s.onDamage(info.Cluster.Leader, fmt.Errorf("jetlog: frame %d, which the replica on %s has, is gone", seq,
				replica))
			return *found, nil
		}
		if replica == "" || err != nil && !errors.Is(err, ErrIncomplete) {
			return framelog.Frame{}, errors.Join(missing, err)
		}
		lastAsked = replica
	}
	s.replicas.forget()
	if asked >= info.Config.Replicas {
		missing = fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	}
	return framelog.Frame{}, missing
}

// servers returns the servers with a replica of the segment, the leader first; none outside of a cluster.
func (s *segment) servers(ctx context.Context) ([]string, error) {
	info, err := s.info(ctx)
	if err != nil || info.Cluster == nil || info.Config.Replicas < 2 {
		return nil, err
	}
	names := []string{info.Cluster.Leader}
	for _, r := range info.Cluster.Replicas {
		names = append(names, r.Name)
	}
	return names, nil
}

// Servers returns the servers with a replica of a segment of the log; none outside of a cluster.
func (l *Log) Servers(ctx context.Context) (names []string, err error) {
	segments, err := l.refresh(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range segments {
		servers, err := s.servers(ctx)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // it was dropped since
		}
		if err != nil {
			return nil, err
		}
		names = append(names, servers...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ScanReplica is Scan of the replicas on one server, also of those that are known to be damaged. It returns an error
// if a replica there does not have the last frame of its segment that the leader has. Segments without a replica
// there are read as by Scan.
func (l *Log) ScanReplica(ctx context.Context, server string, fn func(uint64, framelog.Frame) error) error {
	_, last, segments, err := l.tail(ctx)
	if err != nil {
		return err
	}
	for _, s := range segments {
		end, err := s.last(ctx)
		if err != nil {
			return err
		}
		servers, err := s.servers(ctx)
		end = min(end, last)
		switch {
		case err != nil:
			return err
		case end < s.first: // it is empty, or its first frame was written since
		case !slices.Contains(servers, server):
			_, err = s.read(ctx, s.first, end, fn)
		default:
			err = s.scanReplica(ctx, server, end, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanReplica reads the segment up to last at one server.
func (s *segment) scanReplica(ctx context.Context, server string, last uint64,
	fn func(uint64, framelog.Frame) error,
) error {
	next := s.first
	for n := 1; ; n++ {
		cons, err := s.place(ctx, next, func(placedAt string) bool { return placedAt == server })
		if err != nil {
			return err
		}
		next, err = read(ctx, cons, cons.CachedInfo().Name, next, last, fn)
		s.remove(cons.CachedInfo())
		retryMoved := (errors.Is(err, errMoved) || isInterrupted(err)) && n < placements
		retryIncomplete := errors.Is(err, ErrIncomplete) && n < 2
		if !retryMoved && !retryIncomplete {
			return err
		}
	}
}
