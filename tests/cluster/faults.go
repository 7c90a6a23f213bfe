//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// Fault is something that goes wrong for a while.
type Fault struct {
	Name string
	// Lasts is for how long it goes wrong.
	Lasts time.Duration
	// Bound is the longest time for which a caller may be without an answer; 0: it is measured only.
	Bound time.Duration
	// Begin begins it and returns what ends it.
	Begin func(ctx context.Context, c *Cluster, rng *rand.Rand) (end func(context.Context) error, err error)
}

// Leader returns the server that leads the newest segment of the first partition of a plane's journal, within a minute.
func (c *Cluster) Leader(ctx context.Context, plane string) (*Server, error) {
	js, err := jetstream.New(c.client)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		server, err := c.leader(ctx, js, plane)
		if server != nil {
			return server, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("cluster: the journal of %s has no leader: %w", plane, errors.Join(ctx.Err(), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// leader returns nil if no server is known to lead the segment.
func (c *Cluster) leader(ctx context.Context, js jetstream.JetStream, plane string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	places, err := jetlog.Places(ctx, js, plane)
	if err != nil {
		return nil, err
	}
	var newest jetlog.Place
	for _, p := range places {
		if p.Partition == 0 && p.Segment >= newest.Segment {
			newest = p
		}
	}
	if newest.Plane == "" {
		return nil, errors.New("its first partition has no stream")
	}
	s, err := js.Stream(ctx, newest.Stream()) // which a segment that was archived meanwhile has not
	if err != nil || s.CachedInfo().Cluster == nil {
		return nil, err
	}
	for _, server := range c.NATS {
		if server.Host == s.CachedInfo().Cluster.Leader {
			return server, nil
		}
	}
	return nil, nil
}

// lose makes a fault that loses what hosts send each other; each way is a pair of sender and receiver.
func lose(ctx context.Context, c *Cluster, ways ...[2]string) (func(context.Context) error, error) {
	var heals []func(context.Context) error
	end := func(ctx context.Context) error {
		var err error
		for _, heal := range heals {
			err = errors.Join(err, heal(ctx))
		}
		return err
	}
	for _, way := range ways {
		heal, err := c.Network.Lose(ctx, way[0], way[1])
		if err != nil {
			return nil, errors.Join(err, end(ctx))
		}
		heals = append(heals, heal)
	}
	return end, nil
}

// both returns the ways between a host and others, in both directions.
func both(host string, others []string) (ways [][2]string) {
	for _, other := range others {
		ways = append(ways, [2]string{host, other}, [2]string{other, host})
	}
	return ways
}

// others returns the hosts but one.
func (c *Cluster) others(host string) (all []string) {
	for _, s := range c.NATS {
		if s.Host != host {
			all = append(all, s.Host)
		}
	}
	for _, in := range c.Instances {
		if in.Host != host {
			all = append(all, in.Host)
		}
	}
	return all
}

// Faults returns what is put into a cluster whose instances hold partitions for lease.
func Faults(lease time.Duration) []Fault {
	const (
		election = 12 * time.Second // of NATS, over all partitions
		second   = time.Second
	)
	work := func(ctx context.Context, c *Cluster) (*Server, error) { return c.Leader(ctx, "work") }
	instance := func(c *Cluster, rng *rand.Rand) *Instance { return c.Instances[rng.IntN(len(c.Instances))] }
	server := func(c *Cluster, rng *rand.Rand) *Server { return c.NATS[rng.IntN(len(c.NATS))] }
	return []Fault{
		{"an instance is killed", second, lease + 2*second, func(_ context.Context, c *Cluster, rng *rand.Rand) (
			func(context.Context) error, error,
		) {
			in := instance(c, rng)
			return in.Start, in.Kill()
		}},
		{"an instance is frozen", 2 * lease, lease + 2*second, func(_ context.Context, c *Cluster, rng *rand.Rand) (
			func(context.Context) error, error,
		) {
			in := instance(c, rng)
			return func(context.Context) error { return in.Thaw() }, in.Freeze()
		}},
		{
			"the leader of a journal is killed", 5 * second, election,
			func(ctx context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
				s, err := work(ctx, c)
				if err != nil {
					return nil, err
				}
				return s.Start, s.Kill()
			},
		},
		{"the leader of a journal is frozen", 15 * second, 0, func(ctx context.Context, c *Cluster, _ *rand.Rand) (
			func(context.Context) error, error,
		) {
			s, err := work(ctx, c)
			if err != nil {
				return nil, err
			}
			return func(context.Context) error { return s.Thaw() }, s.Freeze()
		}},
		{"a NATS server reaches nobody", 10 * second, 0, func(ctx context.Context, c *Cluster, _ *rand.Rand) (
			func(context.Context) error, error,
		) {
			s, err := work(ctx, c)
			if err != nil {
				return nil, err
			}
			return lose(ctx, c, both(s.Host, c.others(s.Host))...)
		}},
		{
			"a NATS server receives and nothing that it sends arrives at the others", 10 * second, 0,
			func(ctx context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
				s, err := work(ctx, c)
				if err != nil {
					return nil, err
				}
				var ways [][2]string
				for _, other := range c.NATS {
					if other != s {
						ways = append(ways, [2]string{s.Host, other.Host})
					}
				}
				return lose(ctx, c, ways...)
			},
		},
		{
			"an instance reaches no NATS server", 2*lease + 5*second, 0,
			func(ctx context.Context, c *Cluster, rng *rand.Rand) (func(context.Context) error, error) {
				in := instance(c, rng)
				var hosts []string
				for _, s := range c.NATS {
					hosts = append(hosts, s.Host)
				}
				return lose(ctx, c, both(in.Host, hosts)...)
			},
		},
		{
			"nothing that an instance sends arrives", 2*lease + 5*second, 0,
			func(ctx context.Context, c *Cluster, rng *rand.Rand) (func(context.Context) error, error) {
				in := instance(c, rng)
				var ways [][2]string
				for _, other := range c.others(in.Host) {
					ways = append(ways, [2]string{in.Host, other})
				}
				return lose(ctx, c, ways...)
			},
		},
		{"the instances do not reach each other", 10 * second, 0, func(ctx context.Context, c *Cluster, _ *rand.Rand) (
			func(context.Context) error, error,
		) {
			return lose(ctx, c, both(c.Instances[0].Host, []string{c.Instances[1].Host})...)
		}},
		{"the disk of a NATS server is full", 10 * second, 0, func(_ context.Context, c *Cluster, rng *rand.Rand) (
			func(context.Context) error, error,
		) {
			s := server(c, rng)
			fill := filepath.Join(s.Dir, "filled")
			return func(ctx context.Context) error {
				// A server that could not write does not take part any more until it is started again.
				return errors.Join(os.Remove(fill), s.Kill(), s.Start(ctx))
			}, fillUp(fill)
		}},
		{"all NATS servers are killed at once", second, 0, func(_ context.Context, c *Cluster, _ *rand.Rand) (
			func(context.Context) error, error,
		) {
			var err error
			for _, s := range c.NATS {
				err = errors.Join(err, s.Kill())
			}
			return func(ctx context.Context) error { return c.StartNATS(ctx, c.NATS...) }, err
		}},
		{"everything is started anew, in any order", second, 0, func(_ context.Context, c *Cluster, rng *rand.Rand) (
			func(context.Context) error, error,
		) {
			return func(ctx context.Context) error {
				type started interface {
					Kill() error
					Start(ctx context.Context) error
				}
				all := []started{c.NATS[0], c.NATS[1], c.NATS[2], c.Instances[0], c.Instances[1]}
				rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
				for _, s := range all {
					if err := errors.Join(s.Kill(), s.Start(ctx)); err != nil {
						return err
					}
				}
				return nil
			}, nil
		}},
	}
}

// Steps returns the faults of clocks, which need a build with the tag clockstep.
func Steps() (all []Fault) {
	for _, by := range []time.Duration{time.Hour, 48 * time.Hour, -time.Hour} {
		all = append(all, Fault{
			Name: fmt.Sprintf("the clocks of an instance are moved by %s", by), Lasts: 5 * time.Second,
			Begin: func(_ context.Context, c *Cluster, rng *rand.Rand) (func(context.Context) error, error) {
				in := c.Instances[rng.IntN(len(c.Instances))]
				return func(context.Context) error { return in.Step(0) }, in.Step(by)
			},
		})
	}
	return all
}

// fillUp writes a file until the file system is full.
func fillUp(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	zeros := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(zeros)
	}
	return f.Close()
}

// Selected returns the faults whose names match a regular expression.
func Selected(all []Fault, expression string) []Fault {
	matches := regexp.MustCompile(expression)
	return slices.DeleteFunc(slices.Clone(all), func(f Fault) bool { return !matches.MatchString(f.Name) })
}

// Settled waits until every replica of every stream has what its leader has, and both instances are ready, so that the
// next fault does not meet what the one before has left.
func (c *Cluster) Settled(ctx context.Context) error {
	js, err := jetstream.New(c.client)
	if err != nil {
		return err
	}
	for {
		why := c.unsettled(ctx, js)
		if why == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), why)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *Cluster) unsettled(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	streams := js.ListStreams(ctx)
	n := 0
	for s := range streams.Info() {
		n++
		if s.Cluster == nil || s.Cluster.Leader == "" || len(s.Cluster.Replicas) != 2 {
			return fmt.Errorf("stream %s has no leader or not all replicas", s.Config.Name)
		}
		for _, r := range s.Cluster.Replicas {
			if r.Offline || !r.Current || r.Lag > 0 {
				return fmt.Errorf("stream %s: the replica on %s is not current (offline %t, lag %d)", s.Config.Name,
					r.Name, r.Offline, r.Lag)
			}
		}
	}
	// Streams whose leader does not answer are left out of the list, without an error.
	names, all := js.StreamNames(ctx), 0
	for range names.Name() {
		all++
	}
	if err := errors.Join(streams.Err(), names.Err()); err != nil || n == 0 || n < all {
		return fmt.Errorf("%d of %d streams: %w", n, all, err)
	}
	for _, in := range c.Instances {
		for _, p := range in.Processes {
			if !p.Ready(ctx) {
				return fmt.Errorf("a process of %s is not ready", in.Host)
			}
		}
	}
	return nil
}
