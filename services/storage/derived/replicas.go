package derived

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/retry"
)

const (
	// placements is how often a consumer is placed until it is at the server that is read. NATS chooses the server.
	placements = 40
	// stalled is how long a server may take for the next message that it has.
	stalled = 10 * time.Second
)

// Running returns Streams and the streams of snapshots that NATS servers have.
func Running(ctx context.Context, nc *nats.Conn) ([]Stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	names, err := jetlog.SnapshotStreams(ctx, js)
	if err != nil {
		return nil, fmt.Errorf("the streams of snapshots: %w", err)
	}
	return append(slices.Clone(Streams), snapshots(names)...), nil
}

// Replicas reads a stream of NATS servers that run, in a cluster each of its replicas. A stream that does not exist has
// none.
func (s Stream) Replicas(ctx context.Context, nc *nats.Conn) ([]Report, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	stream, err := jetlog.Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return js.Stream(ctx, s.Name)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the stream %s: %w", s.Name, err)
	}
	servers := []string{""}
	if info := stream.CachedInfo(); info.Cluster != nil && info.Config.Replicas > 1 {
		servers = []string{info.Cluster.Leader}
		for _, r := range info.Cluster.Replicas {
			servers = append(servers, r.Name)
		}
	}
	var all []Report
	for _, server := range servers {
		r := replica{of: Report{Stream: s, Server: server}, stream: stream}
		if err := r.read(ctx, js); err != nil {
			return all, fmt.Errorf("the stream %s on %s: %w", s.Name, server, err)
		}
		all = append(all, r.of)
	}
	return all, nil
}

// replica reads one replica.
type replica struct {
	of     Report
	stream jetstream.Stream
	gaps   [][2]uint64 // first and last sequence number of what was not delivered between two messages
}

// read reads what the replica has, up to the last message that the leader had before.
func (r *replica) read(ctx context.Context, js jetstream.JetStream) error {
	info, err := jetlog.Patiently(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return r.stream.Info(ctx)
	})
	if err != nil {
		return err
	}
	last := info.State.LastSeq
	if info.State.Msgs == 0 {
		last = 0
	} else if _, err := r.stream.GetMsg(ctx, last); errors.Is(err, jetstream.ErrMsgNotFound) {
		last = 0 // it was removed
	} else if err != nil {
		return err
	}
	for again := true; again; {
		cons, err := r.place(ctx, js)
		if err != nil {
			return err
		}
		if cons.CachedInfo().NumPending == 0 && last == 0 {
			break
		}
		if again, err = r.messages(ctx, cons, last); err != nil {
			return err
		}
	}
	return r.judge(ctx)
}

// messages reads the messages up to last; 0: those that the replica had when the consumer was placed. moved says that
// the client replaced the consumer because heartbeats were missing. The new consumer may be at another server, so its
// messages are not read.
func (r *replica) messages(ctx context.Context, cons jetstream.Consumer, last uint64) (moved bool, err error) {
	name := cons.CachedInfo().Name
	msgs, err := cons.Messages(jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return false, err
	}
	defer msgs.Stop()
	for pending := cons.CachedInfo().NumPending; last == 0 && pending > 0 || r.of.Last < last; {
		one, cancel := context.WithTimeout(ctx, stalled)
		m, err := msgs.Next(jetstream.NextContext(one))
		late := one.Err() != nil && ctx.Err() == nil
		cancel()
		if late {
			r.of.Damage = append(r.of.Damage, fmt.Sprintf("what is behind message %d is not delivered", r.of.Last))
			return false, nil
		}
		if err != nil {
			return false, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return false, err
		}
		if meta.Consumer != name {
			return true, nil
		}
		seq := meta.Sequence.Stream
		if r.of.Last > 0 && seq > r.of.Last+1 {
			r.gaps = append(r.gaps, [2]uint64{r.of.Last + 1, seq - 1})
		}
		r.of.add(seq, r.of.readable(m.Subject(), m.Headers(), m.Data()))
		pending = meta.NumPending
	}
	return false, nil
}

// judge decides which gaps are damage. Messages that were removed from the beginning of the stream meanwhile are not
// missing, nor those that were removed from its middle, unless the stream is gapless.
func (r *replica) judge(ctx context.Context) error {
	info, err := r.stream.Info(ctx, jetstream.WithDeletedDetails(!r.of.gapless && len(r.gaps) > 0))
	if err != nil {
		return err
	}
	var damage []string
	// The leader may remove old messages a moment later than the replica.
	for pacer, n := retry.New(time.Second, time.Second), 0; r.missesBeginning(info) && n < 5 &&
		pacer.Wait(ctx) == nil; n++ {
		if info, err = r.stream.Info(ctx); err != nil {
			return err
		}
	}
	if r.missesBeginning(info) {
		damage = append(damage, between(info.State.FirstSeq, r.of.First-1, "", true))
	}
	for _, gap := range r.gaps {
		if from := max(gap[0], info.State.FirstSeq); from <= gap[1] &&
			(r.of.gapless || !removed(info.State.Deleted, from, gap[1])) {
			damage = append(damage, between(from, gap[1], "", r.of.gapless))
		}
	}
	if lost := info.State.Lost; lost != nil && len(lost.Msgs) > 0 && (r.of.Server == "" || info.Cluster != nil &&
		info.Cluster.Leader == r.of.Server) {
		damage = append(damage, fmt.Sprintf("%d messages from message %d on were lost when the server started",
			len(lost.Msgs), slices.Min(lost.Msgs)))
	}
	r.of.Damage = append(damage, r.of.Damage...)
	return nil
}

// missesBeginning reports whether the replica of a gapless stream lacks the first messages that the stream has.
func (r *replica) missesBeginning(info *jetstream.StreamInfo) bool {
	return r.of.gapless && r.of.Messages > 0 && info.State.Msgs > 0 && r.of.First > info.State.FirstSeq
}

// removed reports whether deleted has all sequence numbers from the number from up to and including to. deleted must
// be in ascending order, without repetitions.
func removed(deleted []uint64, from, to uint64) bool {
	i, _ := slices.BinarySearch(deleted, from)
	j, found := slices.BinarySearch(deleted, to)
	return found && uint64(j-i) == to-from
}

// place returns a consumer of what was not read yet, at the server of the replica.
func (r *replica) place(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	for range placements {
		cons, err := jetlog.Patiently(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
			return js.OrderedConsumer(ctx, r.of.Name, jetstream.OrderedConsumerConfig{
				DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.of.Last + 1,
				InactiveThreshold: time.Minute,
				MaxResetAttempts:  3, // see services/backup.Messages
			})
		})
		if err != nil {
			return nil, err
		}
		info := cons.CachedInfo()
		if r.of.Server == "" || info.Cluster != nil && info.Cluster.Leader == r.of.Server {
			return cons, nil
		}
		_ = js.DeleteConsumer(ctx, r.of.Name, info.Name) // it ends by itself after a minute
	}
	return nil, fmt.Errorf("%d consumers in a row were placed at other servers", placements)
}
