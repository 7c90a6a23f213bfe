//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"quartet/tests/load"
	"quartet/tests/proc"
)

// Services are what an instance runs, each as a process if they are split.
var Services = []string{"agent", "work", "task", "waiting", "board", "identity", "scheduler", "gateway"}

// Config of a Cluster. Dir and the binaries are required.
type Config struct {
	Dir, Quartet, NATS string
	// Split runs each service of an instance as a process of its own; else one process serves all.
	Split bool
	// Lease is how long a partition is held without renewal.
	Lease time.Duration
	// Partitions is the setting of this name; empty: the default.
	Partitions string
	// StoreBytes bounds the file system of each NATS server's store.
	StoreBytes int64
	// Before is called when there is a network, and nothing runs on it yet; nil: nothing is done.
	Before func()
}

// Cluster is three NATS servers and two instances of each service.
type Cluster struct {
	Network   *Network
	NATS      []*Server
	Instances []*Instance
	cfg       Config
	client    *nats.Conn
}

// Server is one NATS server on a host of its own.
type Server struct {
	proc.Process
	Host, Addr string
	Dir        string // of the store, a file system of its own
}

// Instance is one of each service, on a host of its own.
type Instance struct {
	Host, Addr string
	Processes  []*proc.Process // the process that callers reach is the last one
	step       string          // the file with what is added to its clocks
}

const (
	grpcPort = 7481
	httpPort = 7480
	token    = "the-token-of-the-callers-of-this-cluster"
)

// bearer sends the token with each call.
type bearer struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: nobody else is in the network.
func (bearer) RequireTransportSecurity() bool { return false }

// New makes the hosts and starts everything. The processes end with this one.
func New(ctx context.Context, cfg Config) (*Cluster, error) {
	network, err := NewNetwork(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Network: network, cfg: cfg}
	if cfg.Before != nil {
		cfg.Before()
	}
	for i := range 3 {
		if err := c.addNATS(ctx, fmt.Sprintf("nats-%d", i+1)); err != nil {
			return nil, err
		}
	}
	if err := c.StartNATS(ctx, c.NATS...); err != nil {
		return nil, err
	}
	c.client, err = nats.Connect(c.natsURL(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	for i := range 2 {
		if err := c.addInstance(ctx, fmt.Sprintf("host-%d", i+1)); err != nil {
			return nil, err
		}
	}
	for _, in := range c.Instances {
		if err := in.Start(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Close kills all processes, frozen ones too, and removes the network.
func (c *Cluster) Close(ctx context.Context) error {
	if c.client != nil {
		c.client.Close()
	}
	for _, in := range c.Instances {
		_ = in.Kill() // one that was never started
	}
	for _, s := range c.NATS {
		_ = s.Kill()                                   // likewise
		_ = syscall.Unmount(s.Dir, syscall.MNT_DETACH) // it ends with this process anyway
	}
	return c.Network.Close(ctx)
}

func (c *Cluster) addNATS(ctx context.Context, host string) error {
	addr, err := c.Network.Add(ctx, host)
	if err != nil {
		return err
	}
	dir := filepath.Join(c.cfg.Dir, host)
	s := &Server{Host: host, Addr: addr, Dir: filepath.Join(dir, "store")}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", s.Dir, "tmpfs", 0, fmt.Sprintf("size=%d", c.cfg.StoreBytes)); err != nil {
		return fmt.Errorf("cluster: mount %s: %w", s.Dir, err)
	}
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf(`server_name: %s
listen: "%s:4222"
max_payload: 8388608
jetstream { store_dir: %q, sync_interval: always, max_file_store: %d }
cluster { name: quartet, listen: "%s:6222", routes: [nats://10.99.0.10:6222, nats://10.99.0.11:6222, nats://10.99.0.12:6222] }
`, host, addr, s.Dir, c.cfg.StoreBytes*3/4, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	binary, args := c.Network.Command(host, c.cfg.NATS, "-c", conf)
	s.Process = proc.Process{
		Binary: binary, Args: args, Log: filepath.Join(dir, "nats.log"),
		Ready: func(ctx context.Context) bool { return listens(ctx, addr+":4222") },
	}
	c.NATS = append(c.NATS, s)
	return nil
}

func listens(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, "tcp", addr)
	return err == nil && conn.Close() == nil
}

// StartNATS starts servers, and returns when each of them listens.
func (c *Cluster) StartNATS(ctx context.Context, servers ...*Server) error {
	for _, s := range servers {
		if err := s.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) natsURL() string {
	var all []string
	for _, s := range c.NATS {
		all = append(all, "nats://"+s.Addr+":4222")
	}
	return strings.Join(all, ",")
}

// archive returns the setting of a directory that all instances share, unless the test has set another archive.
func (c *Cluster) archive() []string {
	if os.Getenv("QUARTET_ARCHIVE") != "" {
		return nil
	}
	return []string{"--archive", filepath.Join(c.cfg.Dir, "archive")}
}

func (c *Cluster) addInstance(ctx context.Context, host string) error {
	addr, err := c.Network.Add(ctx, host)
	if err != nil {
		return err
	}
	in := &Instance{Host: host, Addr: addr, step: filepath.Join(c.cfg.Dir, host+".step")}
	groups := []string{"all"}
	var addresses []string
	if c.cfg.Split {
		groups = Services
		for i, s := range Services {
			name := s
			if s == "gateway" {
				name = "event"
			}
			addresses = append(addresses, fmt.Sprintf("%s=%s:%d", name, addr, grpcPort+10*(len(Services)-1-i)))
		}
	}
	for i, group := range groups {
		at := 10 * (len(groups) - 1 - i)
		dir := filepath.Join(c.cfg.Dir, host, group)
		if err := errors.Join(os.MkdirAll(dir, 0o700),
			os.MkdirAll(filepath.Join(c.cfg.Dir, "archive"), 0o700)); err != nil {
			return err
		}
		calls, web := fmt.Sprintf("%s:%d", addr, grpcPort+at), fmt.Sprintf("%s:%d", addr, httpPort+at)
		args := []string{
			"serve", group, "--nats-url", c.natsURL(), "--replicas", "3", "--auth", "required", "--bootstrap-token",
			token, "--data-dir", dir,
			"--key-file", filepath.Join(c.cfg.Dir, "key"), "--home-dir", filepath.Join(c.cfg.Dir, "home"),
			"--grpc-addr", calls, "--http-addr", web,
			"--partition-lease", c.cfg.Lease.String(), "--log-level", "info",
			"--snapshot-mib", "1", "--segment-mib", "1", // many of them, and an archive
		}
		args = append(args, c.archive()...)
		if c.cfg.Partitions != "" {
			args = append(args, "--partitions", c.cfg.Partitions)
		}
		if len(addresses) > 0 {
			args = append(args, "--addresses", strings.Join(addresses, ","))
		}
		binary, args := c.Network.Command(host, "env",
			append([]string{"QUARTET_TEST_CLOCK_STEP=" + in.step, c.cfg.Quartet}, args...)...)
		in.Processes = append(in.Processes, &proc.Process{
			Binary: binary, Args: args, Log: filepath.Join(dir, "server.log"),
			Ready: func(ctx context.Context) bool { return serving(ctx, calls) },
		})
	}
	c.Instances = append(c.Instances, in)
	return nil
}

// serving reports whether the process that listens for calls on addr is ready. One without a gateway has no other way
// to say so.
func serving(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true))
	return err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

// Start starts what does not run of the instance, and returns when it is ready.
func (in *Instance) Start(ctx context.Context) error {
	errs := make(chan error)
	for _, p := range in.Processes {
		go func() { errs <- p.Start(ctx) }()
	}
	var err error
	for range in.Processes {
		err = errors.Join(err, <-errs)
	}
	return err
}

// Kill kills the processes of the instance.
func (in *Instance) Kill() error { return in.each((*proc.Process).Kill) }

// Freeze suspends the processes of the instance until Thaw.
func (in *Instance) Freeze() error { return in.each((*proc.Process).Freeze) }

// Thaw lets the processes of the instance go on.
func (in *Instance) Thaw() error { return in.each((*proc.Process).Thaw) }

// Step sets the clocks of the instance so much ahead of the machine's.
func (in *Instance) Step(by time.Duration) error {
	return os.WriteFile(in.step, []byte(by.String()), 0o600)
}

func (in *Instance) each(do func(*proc.Process) error) error {
	var err error
	for _, p := range in.Processes {
		err = errors.Join(err, do(p))
	}
	return err
}

// Dial returns a connection whose calls go to the instances by turns, as far as these can be reached.
func (c *Cluster) Dial(instances ...*Instance) (*grpc.ClientConn, error) {
	addrs := manual.NewBuilderWithScheme("cluster")
	var state resolver.State
	for _, in := range instances {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: fmt.Sprintf("%s:%d", in.Addr, grpcPort)})
	}
	addrs.InitialState(state)
	return load.DialTarget("cluster:///instances", grpc.WithResolvers(addrs), grpc.WithPerRPCCredentials(bearer{}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
}
