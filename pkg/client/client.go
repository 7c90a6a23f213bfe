package client

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

// answerMax is the size of the largest response: a page of 500 records with plans.
const answerMax = 16 << 20

// Client is a connection to a server, and typed clients of the services that
// programs use; clients of the others are made over Conn. It is safe for
// concurrent use.
type Client struct {
	Agents    agentv1.AgentServiceClient
	Work      workv1.WorkServiceClient
	Home      workv1.HomeServiceClient
	Tasks     taskv1.TaskServiceClient
	Workers   taskv1.WorkerServiceClient
	Boards    boardv1.BoardServiceClient
	Steps     boardv1.BoardWorkerServiceClient
	Waiting   waitingv1.WaitingServiceClient
	Scheduler schedulerv1.SchedulerServiceClient
	Events    eventv1.EventServiceClient

	conn grpc.ClientConnInterface
	end  func() error
}

// Option changes how Dial connects.
type Option func(*dialling)

type dialling struct {
	token     string
	transport credentials.TransportCredentials
	more      []grpc.DialOption
}

// WithToken makes the client send token as the credential of every call that is not
// made under As. The credential determines the namespace, the principal and the role; there is no
// other way to choose a namespace (SPEC X4).
func WithToken(token string) Option {
	return func(d *dialling) { d.token = strings.TrimSpace(token) }
}

// WithTLS makes the connection use TLS. Without it the connection is plain text, as
// `quartet dev` serves it on loopback.
func WithTLS(cfg *tls.Config) Option {
	return func(d *dialling) { d.transport = credentials.NewTLS(cfg) }
}

// WithGRPC adds options of the grpc package, such as a dialer or a tracer.
func WithGRPC(opts ...grpc.DialOption) Option {
	return func(d *dialling) { d.more = append(d.more, opts...) }
}

// Dial returns a client of the server at a gRPC address. It connects with the first call, and
// again whenever the connection is lost. Without WithToken, it treats localhost as 127.0.0.1, and calls to a
// loopback address have the local token of the server of this user at that address, if there is one.
func Dial(addr string, opts ...Option) (*Client, error) {
	conn, err := Connect(addr, opts...)
	if err != nil {
		return nil, err
	}
	c := New(conn)
	c.end = conn.Close
	return c, nil
}

// Connect returns only the connection of Dial, for programs that create their own typed
// clients.
func Connect(addr string, opts ...Option) (*grpc.ClientConn, error) {
	d := &dialling{transport: insecure.NewCredentials()}
	for _, o := range opts {
		o(d)
	}
	var credential credentials.PerRPCCredentials = bearer(d.token)
	dial := []grpc.DialOption{grpc.WithTransportCredentials(d.transport)}
	if d.token == "" {
		if host, port, err := net.SplitHostPort(addr); err == nil && strings.EqualFold(host, "localhost") {
			// A token is for one address, and this name has two: 127.0.0.1 and ::1.
			dial = append(dial, grpc.WithAuthority(addr))
			addr = net.JoinHostPort("127.0.0.1", port)
		}
		credential = LocalCredential(addr)
	}
	dial = append(dial,
		grpc.WithPerRPCCredentials(credential),
		grpc.WithChainUnaryInterceptor(rpc.FaultsUnary),
		grpc.WithChainStreamInterceptor(rpc.FaultsStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
		// Connect to a restarted server at once; calls have their own backoff.
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 2 * time.Second,
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second,
			},
		}),
		// A server that disappears without closing the connection is noticed within 30 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	return grpc.NewClient(addr, append(dial, d.more...)...)
}

// New returns a client over an existing connection, which Close does not close. Errors of calls
// are faults only if the connection converts them, as a connection of Connect does.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{
		Agents: agentv1.NewAgentServiceClient(conn), Work: workv1.NewWorkServiceClient(conn),
		Home:  workv1.NewHomeServiceClient(conn),
		Tasks: taskv1.NewTaskServiceClient(conn), Workers: taskv1.NewWorkerServiceClient(conn),
		Boards: boardv1.NewBoardServiceClient(conn), Steps: boardv1.NewBoardWorkerServiceClient(conn),
		Waiting: waitingv1.NewWaitingServiceClient(conn), Scheduler: schedulerv1.NewSchedulerServiceClient(conn),
		Events: eventv1.NewEventServiceClient(conn),
		conn:   conn, end: func() error { return nil },
	}
}

// Conn returns the connection, for calls that have no typed client.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Close closes the connection that Dial made. It does nothing for a Client of New.
func (c *Client) Close() error { return c.end() }

type actKey struct{}

// As makes calls under ctx use another credential than the client's, such as the token of a
// turn.
func As(ctx context.Context, token string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md) // a copy: one token replaces another
	md.Set("authorization", "Bearer "+token)
	return metadata.NewOutgoingContext(context.WithValue(ctx, actKey{}, true), md)
}

// bearer is the credential of every call, except those under As, which have their own; if
// it is empty none is sent. It is also sent over plain text, because the default server is
// on loopback; for other servers use WithTLS, a tunnel or a proxy.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials. It returns nothing for a call under As, and if b is
// empty.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if own, _ := ctx.Value(actKey{}).(bool); own || b == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. It returns false, see bearer.
func (bearer) RequireTransportSecurity() bool { return false }
