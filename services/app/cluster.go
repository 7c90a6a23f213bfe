package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"quartet/pkg/lease"
)

// defaultPartitions is the number of partitions of a split plane in a new installation
// on a NATS cluster: enough for six instances. More partitions make smaller frames, and
// every frame costs an fsync on each server.
const defaultPartitions = 6

// maxPartitions is the largest number of partitions that an operator can set for a plane.
const maxPartitions = 64

// clustered reports whether other processes may serve the same planes.
func (c *Config) clustered() bool { return c.NATSURL != "" }

// partitions returns the number of partitions that a new journal of a plane gets, and whether the
// operator set it explicitly: an existing journal with another number is then an error.
func (c *Config) partitions(plane string) (n int, explicit bool, err error) {
	text, explicit := c.Partitions[plane]
	switch {
	case !explicit && c.clustered() && splits[plane]:
		return defaultPartitions, false, nil
	case !explicit:
		return 1, false, nil
	case !splits[plane]:
		return 0, true, fmt.Errorf("partitions: %s cannot be split; work and waiting can", plane)
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxPartitions {
		return 0, true, fmt.Errorf("partitions: the number for %s is %q; it must be a number from 1 to %d", plane, text,
			maxPartitions)
	}
	return n, true, nil
}

// checkPartitions checks the settings partitions and partition-lease.
func (c *Config) checkPartitions() error {
	for plane := range c.Partitions {
		if !slices.Contains(planes, plane) {
			return fmt.Errorf("partitions: no plane is called %q; work and waiting can be split", plane)
		}
		if _, _, err := c.partitions(plane); err != nil {
			return err
		}
	}
	if c.PartitionLease != 0 && (c.PartitionLease < time.Second || c.PartitionLease > time.Hour) {
		return fmt.Errorf("partition-lease is %s; it must be 1s to 1h", c.PartitionLease)
	}
	return nil
}

// leases is the module that starts to acquire partitions once other processes can reach this one, and
// hands them over before the process stops.
type leases struct {
	cfg    *Config
	broker *broker
	edge   *edge
	keeper *lease.Keeper
}

// Name implements life.Service.
func (l *leases) Name() string { return "leases" }

// Start publishes this process's address and starts to acquire partitions.
func (l *leases) Start(ctx context.Context) error {
	addr, err := l.cfg.advertisedAddr(l.edge.Addr())
	if err != nil {
		return err
	}
	l.keeper.Present(l.broker.journals, lease.Peer{Addr: addr, Name: l.cfg.AdvertiseName})
	return l.keeper.Start(ctx)
}

// Stop hands all partitions over.
func (l *leases) Stop(ctx context.Context) error { return l.keeper.Stop(ctx) }

// Ready returns an error while this process has no valid lease session, while a partition is
// held by no process, and while one that this process holds is not open yet. See
// lease.Keeper.Ready.
func (l *leases) Ready() error { return l.keeper.Ready() }

// advertisedAddr returns the address at which other instances reach this one. bound is
// the address of its listener.
func (c *Config) advertisedAddr(bound string) (string, error) {
	if c.AdvertiseAddr != "" {
		return c.AdvertiseAddr, nil
	}
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return bound, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("advertise-addr is empty, and the machine's name is unknown: %w", err)
	}
	return net.JoinHostPort(name, port), nil
}
