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

// defaultPartitions is how many partitions a plane that is split gets in a new
// installation on a NATS cluster: enough for six instances. More make frames
// smaller, and every frame costs an fsync on each server.
const defaultPartitions = 6

// maxPartitions bounds what an operator may ask for.
const maxPartitions = 64

// clustered says whether other processes may serve the same planes.
func (c *Config) clustered() bool { return c.NATSURL != "" }

// partitions are those of new journals; asked says that the operator named the
// number, so that another one is a mistake.
func (c *Config) partitions(plane string) (n int, asked bool, err error) {
	text, asked := c.Partitions[plane]
	switch {
	case !asked && c.clustered() && splits[plane]:
		return defaultPartitions, false, nil
	case !asked:
		return 1, false, nil
	case !splits[plane]:
		return 0, true, fmt.Errorf("partitions: %s cannot be split; work and waiting can", plane)
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxPartitions {
		return 0, true, fmt.Errorf("partitions: that of %s is %q; it must be a number from 1 to %d", plane, text, maxPartitions)
	}
	return n, true, nil
}

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

// leases is the module that takes and hands over partitions while this process
// can be reached.
type leases struct {
	cfg    *Config
	broker *broker
	edge   *edge
	keeper *lease.Keeper
}

func (l *leases) Name() string { return "leases" }

func (l *leases) Start(ctx context.Context) error {
	addr, err := l.cfg.advertised(l.edge.Addr())
	if err != nil {
		return err
	}
	l.keeper.Present(l.broker.journals, lease.Peer{Addr: addr, Name: l.cfg.AdvertiseName})
	return l.keeper.Start(ctx)
}

func (l *leases) Stop(ctx context.Context) error { return l.keeper.Stop(ctx) }

func (l *leases) Ready() error { return l.keeper.Ready() }

// advertised is where other instances reach this one.
func (c *Config) advertised(bound string) (string, error) {
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
		return "", fmt.Errorf("advertise-addr is empty, and the machine's name cannot be found out: %w", err)
	}
	return net.JoinHostPort(name, port), nil
}
