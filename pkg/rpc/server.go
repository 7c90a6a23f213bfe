package rpc

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// DefaultDeadline is the deadline of a unary call that has none.
const DefaultDeadline = 30 * time.Second

// defaultSendTime is the default of Config.SendTime.
const defaultSendTime = time.Minute

// streamWorkers is how many handler goroutines a server keeps. Calls beyond it
// (watches, long polls) get a goroutine of their own, so it limits nothing. As
// a call waits for its frame, there is one for each of the callers that a server
// has at once: with 64 of them 256 callers spent 4 % on growing stacks.
const streamWorkers = 512

var (
	quickBackoff = backoff.Config{
		BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 250 * time.Millisecond,
	}
	patientBackoff = backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 5 * time.Second,
	}
)

// Config of a server.
type Config struct {
	Auth Authenticator // required
	// Log gets every call at level debug and the errors of the server at level warn, never
	// a message's contents. Optional.
	Log *zap.Logger
	// Metrics gets grpc_server_… of every call and quartet_refusals_total. Several servers
	// may share one. Optional.
	Metrics prometheus.Registerer
	// Ready is called by health checks; nil: always ready.
	Ready func() error
	// Deadline of unary calls that bring none, by default DefaultDeadline.
	Deadline time.Duration
	// Deadlines are exceptions by full method: long polls outlive the default. If Auth is a
	// Holder, calls of these methods and streams also end when their credential does.
	Deadlines map[string]time.Duration
	// Admission decides which calls are executed; nil: all are.
	Admission Admission
	// ReceiveTime is how long the only message of a caller's side may take to arrive, by default
	// defaultReceiveTime.
	ReceiveTime time.Duration
	// SendTime is how long a message of a stream may wait for the caller to receive it, by default
	// defaultSendTime. After that the call is ended with OVERLOADED.
	SendTime time.Duration
	// Elsewhere returns the connection to a service that this server does not serve, by its
	// full name, or nil. It must send no credential of its own, because the caller's is
	// forwarded. Without it such calls are UNIMPLEMENTED.
	Elsewhere func(service string) grpc.ClientConnInterface
	// Transport secures TCP; nil is plain text.
	Transport credentials.TransportCredentials
	// Tracer gets the spans of calls. Optional.
	Tracer *tracing.Tracer
	// Quiet are the methods, by full name, that begin no trace: polls and heartbeats.
	// They continue the caller's.
	Quiet map[string]bool
	// Mutual accepts credentials of services over TCP only with a verified certificate.
	Mutual bool
}

// server holds what the interceptors share.
type server struct {
	cfg      Config // complete, with its defaults
	identity *identity
	meters   *meters
}

// NewServer returns a server with all interceptors, health and reflection. The caller
// registers services, and then serves it in memory by Network.Listen, on TCP, or both.
func NewServer(cfg Config) *Server {
	cfg.SendTime = cmp.Or(cfg.SendTime, defaultSendTime)
	cfg.ReceiveTime = cmp.Or(cfg.ReceiveTime, defaultReceiveTime)
	cfg.Deadline = cmp.Or(cfg.Deadline, DefaultDeadline)
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	cfg.Admission = cmp.Or[Admission](cfg.Admission, Unlimited{})
	s := &server{cfg: cfg, identity: newIdentity(cfg.Auth, cfg.Mutual), meters: newMeters(cfg.Metrics)}

	opts := []grpc.ServerOption{
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(fault.MaxRequestBytes),
		grpc.MaxHeaderListSize(headerMax),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.InTapHandle(tapUnproven),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             5 * time.Second,
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Handlers run on goroutines that are kept: their stacks have grown already,
		// which saves copying them on every call.
		grpc.NumStreamWorkers(streamWorkers),
		// Forwarded messages are copied as bytes.
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.WaitForHandlers(true), // Stop returns when all handlers have returned
	}
	if cfg.Elsewhere != nil {
		opts = append(opts, grpc.UnknownServiceHandler(s.forward))
	}
	transport := cfg.Transport
	if transport == nil {
		transport = plain{insecure.NewCredentials()}
	}
	opts = append(opts, grpc.Creds(newEdge(transport)))
	srv := newLocalServer(grpc.NewServer(opts...), s)
	grpc_health_v1.RegisterHealthServer(srv, &health{ready: cfg.Ready})
	reflection.Register(srv)
	return srv
}

// Drain stops srv after its running calls have ended, or at once when ctx ends, because
// watches and long polls may not end by themselves.
func Drain(ctx context.Context, srv *Server) {
	done := make(chan struct{})
	go func() {
		srv.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		srv.Stop()
		<-done
	}
}
