//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// Network is hosts on one bridge, on which this process has an address too.
type Network struct {
	mu    sync.Mutex
	hosts map[string]string // addresses by name
	lost  map[[2]string]int // how many faults let nothing through from a host to another
}

// here is the address of this process on the bridge.
const here = "10.99.0.1"

// NewNetwork makes the bridge. It must be called inside of Enter, and again only after Close.
func NewNetwork(ctx context.Context) (*Network, error) {
	if !Inside() {
		return nil, fmt.Errorf("cluster: a network is made in namespaces of its own only")
	}
	// What is mounted here is seen nowhere else.
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("cluster: private mounts: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("cluster: mount /run: %w", err)
	}
	n := &Network{hosts: map[string]string{}, lost: map[[2]string]int{}}
	return n, each(ctx,
		"link set lo up",
		"link add name hosts type bridge forward_delay 0",
		"addr add "+here+"/24 dev hosts",
		"link set hosts up",
	)
}

// Close removes the hosts and the bridge. Nothing may run on them.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	for host := range n.hosts {
		// The link ends with its host, if nothing runs there any more, and here at the latest.
		_ = each(ctx, "link del "+host+"-eth")
		err = errors.Join(err, each(ctx, "netns del "+host))
	}
	return errors.Join(err, each(ctx, "link del hosts"))
}

// Add makes a host and returns its address.
func (n *Network) Add(ctx context.Context, host string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr := fmt.Sprintf("10.99.0.%d", 10+len(n.hosts))
	n.hosts[host] = addr
	return addr, each(ctx,
		"netns add "+host,
		"link add "+host+"-eth type veth peer name eth0 netns "+host,
		"link set "+host+"-eth master hosts up",
		"-n "+host+" addr add "+addr+"/24 dev eth0",
		"-n "+host+" link set eth0 up",
		"-n "+host+" link set lo up",
	)
}

// Command returns the arguments that run a command on a host.
func (n *Network) Command(host, binary string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=/run/netns/" + host, binary}, args...)
}

// Lose lets nothing through from one host to another any more, until heal is called. What the other one sends arrives.
func (n *Network) Lose(ctx context.Context, from, to string) (heal func(context.Context) error, err error) {
	if err := n.change(ctx, from, to, 1); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return n.change(ctx, from, to, -1) }, nil
}

func (n *Network) change(ctx context.Context, from, to string, by int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	way := [2]string{from, to}
	before := n.lost[way]
	n.lost[way] += by
	switch {
	case before == 0 && by > 0:
		return each(ctx, "-n "+from+" route add blackhole "+n.hosts[to]+"/32")
	case before == 1 && by < 0:
		return each(ctx, "-n "+from+" route del blackhole "+n.hosts[to]+"/32")
	}
	return nil
}

// each runs ip(8) with one command after another.
func each(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s (of iproute2): %w: %s", c, err, out)
		}
	}
	return nil
}
