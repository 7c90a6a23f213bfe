package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"quartet/pkg/id"
	"quartet/pkg/tracing"
)

const (
	// memoryBuffer is the size of an in-process pipe. 256 KiB is four HTTP/2 windows; with a
	// smaller one writers wait for readers in the middle of a frame.
	memoryBuffer = 256 << 10

	// clientRecvMax is larger than the limit of requests, because a page of 500 records is
	// bounded in bytes of JSON.
	clientRecvMax = 16 << 20
)

// NetworkConfig holds the settings of a Network.
type NetworkConfig struct {
	// Service names this process in events of calls that no request caused.
	Service string
	// Token is the service's credential; without it calls have none.
	Token string
	// Renewed returns the service's credential as it is now, in place of Token. It is called
	// for every call.
	Renewed func() string
	// Addresses maps service names to host:port, for those elsewhere. A name
	// that resolves to several addresses is balanced over them.
	Addresses map[string]string
	// NewID returns request ids for mutations without one, so that a call can be repeated at
	// another instance and is executed once. Default: id.New().New.
	NewID func(prefix string) string
	// Transport secures TCP connections; nil is plain text.
	Transport credentials.TransportCredentials
	// Tracer makes calls carry the trace that they are part of. Optional.
	Tracer *tracing.Tracer
}

// Network returns connections to services by name.
type Network struct {
	cfg  NetworkConfig
	cred *credential

	mu      sync.RWMutex
	local   map[string]*bufconn.Listener
	servers map[string]*Server // of local
	conns   map[string]*Conn
	bare    map[string]*grpc.ClientConn
	closed  bool
}

// NewNetwork returns the network of one process.
func NewNetwork(cfg NetworkConfig) *Network {
	if cfg.NewID == nil {
		cfg.NewID = id.New().New
	}
	if cfg.Renewed == nil {
		cfg.Renewed = func() string { return cfg.Token }
	}
	cred := newCredential(cfg.Service, cfg.Renewed)
	cred.tracer = cfg.Tracer
	return &Network{
		cfg: cfg, cred: cred,
		local: map[string]*bufconn.Listener{}, servers: map[string]*Server{}, conns: map[string]*Conn{},
		bare: map[string]*grpc.ClientConn{},
	}
}

// Listen makes srv serve calls of name inside this process until srv is stopped or the Network is closed, and returns
// at once. It returns an error if name is in use or the Network is closed. The same server may have several names,
// and serve TCP as well.
func (n *Network) Listen(name string, srv *Server) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.New("rpc: the network is closed")
	}
	if _, taken := n.local[name]; taken {
		return fmt.Errorf("rpc: service %q is served twice in this process", name)
	}
	lis := bufconn.Listen(memoryBuffer)
	n.local[name], n.servers[name] = lis, srv
	go func() {
		_ = srv.Serve(lis) // ends with the listener or the server
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.local[name] == lis {
			delete(n.local, name)
			delete(n.servers, name)
		}
	}()
	return nil
}

// Dial returns the connection to a service: over memory if it is served in this
// process or has no address, else over TCP. The first Dial of a name decides that
// for all later ones. A name without an address may be served here later; calls
// until then fail with NOT_READY. Connections are shared and belong to the
// Network: do not close them.
func (n *Network) Dial(name string) (*Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errors.New("rpc: the network is closed")
	}
	if conn, ok := n.conns[name]; ok {
		return conn, nil
	}
	target := "passthrough:///" + name
	opts := []grpc.DialOption{
		grpc.WithUnaryInterceptor(n.cred.unary),
		grpc.WithStreamInterceptor(n.cred.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(clientRecvMax)),
		// grpc only retries what a service config asks for; off, it buffers nothing.
		grpc.WithDisableRetry(),
	}
	addr, remote := n.cfg.Addresses[name]
	localName := ""
	if _, here := n.local[name]; !remote || here {
		localName = name
		opts = append(opts,
			grpc.WithTransportCredentials(insecure.NewCredentials()), // it is memory
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return n.dialLocal(ctx, name)
			}),
			// A service that starts a moment later should not cost a second of backoff.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: quickBackoff, MinConnectTimeout: time.Second}))
	} else {
		target = "dns:///" + addr
		opts = append(opts, n.remoteOptions()...)
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("rpc: connect to %s: %w", name, err)
	}
	c := &Conn{ClientConn: conn, network: n, name: localName}
	n.conns[name] = c
	return c, nil
}

// Bare returns a connection to a service of another process that sends no credential of its
// own, for forwarded calls; nil if the service has no address or the Network is closed. It belongs
// to the Network.
func (n *Network) Bare(name string) *grpc.ClientConn {
	addr, ok := n.cfg.Addresses[name]
	if !ok {
		return nil
	}
	return n.dialRemote(name, "dns:///"+addr)
}

// Peer returns the connection to the process at addr, whose certificate must have the given name; ""
// means the host in addr. The connection sends no credential of its own and is not balanced over several
// processes. It is shared and belongs to the Network: do not close it. Peer returns nil once the Network
// is closed.
func (n *Network) Peer(addr, name string) *grpc.ClientConn {
	// With one address and gRPC's default policy, pick_first, the connection is made again only
	// for a call: the process may have ended permanently.
	opts := []grpc.DialOption{grpc.WithDefaultServiceConfig(`{}`)}
	if name != "" {
		opts = append(opts, grpc.WithAuthority(name))
	}
	return n.dialRemote("peer "+name+" "+addr, "passthrough:///"+addr, opts...)
}

// holder returns the connection to one instance of a service. Calls over it bear the credential of this process.
func (n *Network) holder(addr, name string) *grpc.ClientConn {
	opts := []grpc.DialOption{
		grpc.WithDefaultServiceConfig(`{}`), grpc.WithUnaryInterceptor(n.cred.unary),
		grpc.WithStreamInterceptor(n.cred.stream),
	}
	if name != "" {
		opts = append(opts, grpc.WithAuthority(name))
	}
	return n.dialRemote("holder "+name+" "+addr, "passthrough:///"+addr, opts...)
}

// dialRemote returns the connection that is kept under key, and makes it at the first call. It returns nil once the
// Network is closed.
func (n *Network) dialRemote(key, target string, more ...grpc.DialOption) *grpc.ClientConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if conn := n.bare[key]; conn != nil || n.closed {
		return conn
	}
	conn, err := grpc.NewClient(target, append(n.remoteOptions(), more...)...)
	if err != nil {
		return nil // the address was read at the start, and is refused there
	}
	n.bare[key] = conn
	return conn
}

// remoteOptions returns the options of connections over TCP.
func (n *Network) remoteOptions() []grpc.DialOption {
	transport := n.cfg.Transport
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(clientRecvMax)),
		grpc.WithDisableRetry(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: patientBackoff, MinConnectTimeout: 5 * time.Second}),
		// A peer that vanished is detected within 20 s + 5 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
	}
}

// dialLocal connects to a service that is served in this process.
func (n *Network) dialLocal(ctx context.Context, name string) (net.Conn, error) {
	n.mu.Lock()
	lis, ok := n.local[name]
	n.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("service %q is not in this process and has no address", name)
	}
	return lis.DialContext(ctx)
}

// Close ends all connections and in-process listeners. It does not stop servers.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	conns, bare, local := n.conns, n.bare, n.local
	n.conns, n.bare, n.local, n.servers = nil, nil, nil, nil
	n.mu.Unlock()
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	for _, c := range bare {
		errs = append(errs, c.Close())
	}
	for _, l := range local {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
