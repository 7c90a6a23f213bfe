package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/admission"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/life"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
)

// DefaultHTTPAddr is on the loopback interface, so that only this machine can connect.
const DefaultHTTPAddr = "127.0.0.1:7480"

// drainTime is how long requests in flight may take when the gateway stops.
const drainTime = 5 * time.Second

// Config is what an operator sets.
type Config struct {
	// HTTPAddr is where to listen. Default DefaultHTTPAddr.
	HTTPAddr string
	// AllowedOrigins are the web origins, beside the gateway's own, whose pages may call
	// it, such as "https://console.example.com".
	AllowedOrigins []string
	// AllowedHosts are the host names that a gateway bound to loopback accepts in
	// requests, beside the loopback ones: those of a proxy in front of it.
	AllowedHosts []string
	// MaxBody bounds a request's body. Default 4 MiB (SPEC X8).
	MaxBody int64
	// Connections bounds connections, above all those whose callers have shown no valid
	// credential.
	Connections connlimit.Limits
	// Heartbeat is the longest time between two messages of an event stream. Default 15 s.
	Heartbeat time.Duration
	// SourceDeliveries and SourceDeliveryKiB are how many deliveries to triggers, and KiB of them, a
	// source address may send per second; 0: no limit.
	SourceDeliveries, SourceDeliveryKiB int
	// MetricsAuth makes GET /metrics demand a credential; see Metered.
	MetricsAuth bool
}

// Deps is what the gateway needs of its process.
type Deps struct {
	// Conn returns a connection to a service: agent, work, task, waiting, board, identity, fleet
	// or scheduler. Its calls are made as the actor in their context.
	Conn func(service string) (grpc.ClientConnInterface, error)
	// Auth authenticates callers of HTTP.
	Auth rpc.Authenticator
	// TLS configures the listener; nil: plain HTTP.
	TLS *tls.Config
	// Admission is that of the process's gRPC server; nil: everything is admitted.
	Admission rpc.Admission
	// Waits reports whether an RPC that is no stream may wait for most of a minute, such as
	// /quartet.agent.v1.AgentService/AcquireTurn; nil: none does.
	Waits func(method string) bool
	// Sources returns the partitions of a plane's journal.
	Sources func(plane string) ([]journal.Source, error)
	// Ready returns nil if the process can serve; a nil function: it always can.
	Ready func() error
	// Damage returns what is known to be wrong with journals; nil: nothing ever is.
	Damage func() []error
	// Down returns why the installation, with all its processes, does not serve everything; nil if it does. Optional.
	Down func(ctx context.Context) []string
	// Warning returns what an operator should know about the store of the journals, "" for nothing. Optional.
	Warning func() string
	// MCP returns the handler of /mcp/{agent_id}, which calls services over connections of conn, and refuse for a
	// request that it refuses; nil: none is served.
	MCP func(conn func(service string) (grpc.ClientConnInterface, error),
		refuse func(http.ResponseWriter, *http.Request, error)) (http.Handler, error)
	// Console serves the start page, the console and the sessions of its users; nil: none is served.
	Console Console
	// OpenAPI is the response of GET /openapi.json; empty: not found.
	OpenAPI []byte
	// Metrics is shown by GET /metrics, and requests are counted in it; nil: nothing is
	// shown or counted.
	Metrics *prometheus.Registry
	Logger  *zap.Logger
	// Tracer records requests as spans; nil: none.
	Tracer *tracing.Tracer
	// Version is that of the build.
	Version string
	// Listening is called with the address before requests are accepted, and Closing before the
	// gateway stops listening; nil: nothing is called.
	Listening func(net.Addr) error
	Closing   func(net.Addr)
}

// Service serves HTTP and EventService. It is a life.Service.
type Service struct {
	cfg    Config
	deps   Deps
	events *events

	mu       sync.Mutex // guards what Start sets
	listener net.Listener
	loopback bool // listener has a loopback address
	server   *http.Server
	served   chan struct{} // closed when the server has ended
	stopping atomic.Bool
	life     context.Context    //nolint:containedctx // of streams and long polls; ends when the gateway stops
	halt     context.CancelFunc // ends life
}

// New returns a gateway that is not started. It completes cfg and deps with defaults.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Conn == nil || deps.Auth == nil || deps.Sources == nil {
		return nil, errors.New("gateway: Deps needs Conn, Auth and Sources")
	}
	cfg.HTTPAddr = cmp.Or(cfg.HTTPAddr, DefaultHTTPAddr)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, fault.MaxRequestBytes)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 15*time.Second)
	for _, origin := range cfg.AllowedOrigins {
		if _, err := originHost(origin); err != nil {
			return nil, fmt.Errorf("gateway: allowed origin %q: %w", origin, err)
		}
	}
	deps.Admission = cmp.Or[rpc.Admission](deps.Admission, rpc.Unlimited{})
	if deps.Ready == nil {
		deps.Ready = func() error { return nil }
	}
	deps.Logger = cmp.Or(deps.Logger, zap.NewNop())
	g := &Service{cfg: cfg, deps: deps}
	life, halt := context.WithCancel(context.Background())
	g.life, g.halt = life, halt
	g.events = &events{
		sources: deps.Sources, heartbeat: cfg.Heartbeat, life: life, log: deps.Logger,
		admission: deps.Admission,
		behind:    admission.NewHeld(maxBehind),
	}
	return g, nil
}

// Name returns the module's name.
func (g *Service) Name() string { return "gateway" }

// Register puts EventService on the process's gRPC server.
func (g *Service) Register(srv grpc.ServiceRegistrar) {
	eventv1.RegisterEventServiceServer(srv, g.events)
}

// Start listens and serves. A second call does nothing; after Stop it fails.
func (g *Service) Start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		return nil
	}
	if g.stopping.Load() {
		return errors.New("gateway: it was stopped")
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", g.cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	g.loopback = isLoopback(lis.Addr())
	handler, err := g.handler()
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	if g.deps.Listening != nil {
		if err := g.deps.Listening(lis.Addr()); err != nil {
			return errors.Join(fmt.Errorf("gateway: %w", err), lis.Close())
		}
	}
	lis = connlimit.Listen(lis, "http", g.cfg.Connections, g.registerer())
	g.listener = lis
	g.server = &http.Server{
		Handler:     handler,
		ConnContext: withConn,
		// A client that sends its header slowly holds a connection for 10 s at most.
		// There is no limit for a whole response, because streams have no end; their
		// writes have deadlines of their own.
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		// What a connection buffers before a handler reads it.
		HTTP2:    &http.HTTP2Config{MaxReceiveBufferPerConnection: 2 << 16, MaxReceiveBufferPerStream: 1 << 16},
		ErrorLog: zap.NewStdLog(g.deps.Logger.Named("http")),
	}
	if g.deps.TLS != nil {
		lis = connlimit.ListenHTTPS(lis, g.deps.TLS, g.server)
	}
	g.served = make(chan struct{})
	go func(srv *http.Server, served chan struct{}) {
		defer close(served)
		if err := srv.Serve(lis); err != nil && !errors.Is(err, http.ErrServerClosed) {
			g.deps.Logger.Error("gateway: serving ended", zap.Error(err))
		}
	}(g.server, g.served)
	return nil
}

// Stop ends readiness and event streams, waits for requests in flight, at most drainTime, and
// closes all connections. It is idempotent.
func (g *Service) Stop(ctx context.Context) error {
	g.stopping.Store(true)
	g.halt()
	g.mu.Lock()
	lis, srv, served := g.listener, g.server, g.served
	g.mu.Unlock()
	if srv == nil {
		return nil
	}
	if g.deps.Closing != nil {
		g.deps.Closing(lis.Addr())
	}
	drain, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	var err error
	if srv.Shutdown(drain) != nil {
		// What is left is a long poll, which its caller repeats, or a mutation, which
		// its caller repeats with its request id.
		err = srv.Close()
	}
	<-served
	return err
}

// Ready returns nil between Start and Stop.
func (g *Service) Ready() error {
	if g.Addr() == "" || g.stopping.Load() {
		return life.ErrNotStarted
	}
	return nil
}

// Addr returns the address on which the gateway listens, "" before Start.
func (g *Service) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener == nil {
		return ""
	}
	return g.listener.Addr().String()
}
