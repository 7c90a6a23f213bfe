package mcp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

// Config configures a Service.
type Config struct {
	// Version is the version of the build, which clients show.
	Version string
	// Progress is how often a client that requested progress is notified that a call
	// still runs. Default 1 s.
	Progress time.Duration
	// MaxBody limits a message. Default 4 MiB (SPEC X8).
	MaxBody int64
	// Patience is how long a session over stdio waits for the server before it starts without
	// one, and how long a call in such a session waits before it is refused. Default 2 s.
	Patience time.Duration
	// Absence is how long a call in a session over stdio is repeated while no server can be reached, before it
	// is refused. Default 8 s, after which the attempt that is the last one may take 2 s more.
	Absence time.Duration
	// Starting is how long such a call is repeated while the server answers that it is not ready. Default 30 s.
	Starting time.Duration
	// Poll is how often the resources to which a client subscribed are compared, for changes
	// that no event reports: an editor may write a plan file. Default 2 s.
	Poll time.Duration
}

// Options choose what a session over stdio serves.
type Options struct {
	// AgentID names the agent.
	AgentID string
	// Create creates the agent if it does not exist.
	Create bool
	// Tools is the set of tools: AllTools, which is the default, or MemoryTools.
	Tools string
	// Address is the server's address, for messages to people and models.
	Address string
	// Elsewhere is the address of a server of the same user that runs while none does at Address, for
	// messages; "" if there is none.
	Elsewhere string
}

// Deps are the connections to the planes.
type Deps struct {
	// Conn returns a connection to the service agent, work or event. Its calls are made
	// as the actor in their context, or with a credential of the connection.
	Conn func(service string) (grpc.ClientConnInterface, error)
}

// Service serves agents over MCP.
type Service struct {
	cfg    Config
	agents agentv1.AgentServiceClient
	work   workv1.WorkServiceClient
	home   workv1.HomeServiceClient
	events eventv1.EventServiceClient
	ids    id.Source
}

// New sets defaults. Nothing is connected before the first call.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Conn == nil {
		return nil, errors.New("mcp: Deps needs Conn")
	}
	cfg.Progress = cmp.Or(cfg.Progress, time.Second)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, fault.MaxRequestBytes)
	cfg.Patience = cmp.Or(cfg.Patience, 2*time.Second)
	cfg.Absence = cmp.Or(cfg.Absence, 8*time.Second)
	cfg.Starting = cmp.Or(cfg.Starting, 30*time.Second)
	cfg.Poll = cmp.Or(cfg.Poll, 2*time.Second)
	to := func(service string) grpc.ClientConnInterface {
		return rpc.Lazy(func() (grpc.ClientConnInterface, error) { return deps.Conn(service) })
	}
	return &Service{
		cfg: cfg, ids: id.New(),
		agents: agentv1.NewAgentServiceClient(to("agent")), work: workv1.NewWorkServiceClient(to("work")),
		home: workv1.NewHomeServiceClient(to("work")), events: eventv1.NewEventServiceClient(to("event")),
	}, nil
}

// ServeStdio serves one agent to the client at the other end of in and out, one message
// per line, until in or ctx ends. It returns an error before it reads a message if the agent
// does not exist and is not to be created, or if the options are invalid. If no server can be
// reached within Config.Patience, the session starts all the same: it has no tools until the
// server runs, and says how to start one (SPEC C5.7).
func (s *Service) ServeStdio(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	if err := fault.First(checkTools(o.Tools), fault.Name("agent_id", o.AgentID)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	admitted := make(chan error, 1)
	go func() { admitted <- s.admit(ctx, o.AgentID, o.Create) }()
	patience := time.NewTimer(s.cfg.Patience)
	defer patience.Stop()
	absent := false
	select {
	case err := <-admitted:
		if err != nil {
			return err
		}
	case <-patience.C:
		absent = true
	}
	a := s.server(serverOptions{
		agentID: o.AgentID, tools: o.Tools, address: o.Address, elsewhere: o.Elsewhere,
		stdio: true, absent: absent,
	},
		func(ctx context.Context) context.Context { return ctx })
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		a.attend(ctx, admitted)
	}()
	err := a.srv.Run(ctx, newLine(ctx, in, out, int(s.cfg.MaxBody)).transport())
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
		err = nil // the regular end of a session
	}
	cancel()
	<-followed
	return err
}

// admit returns an error if the agent does not exist and create is not set; with create set,
// it creates the agent. It repeats calls while no server can be reached, until ctx ends. That a quota or the store
// is full may not pass for long, so it is an error at once.
func (s *Service) admit(ctx context.Context, agentID string, create bool) error {
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	_, err := client.Again(ctx, func(ctx context.Context) (*agentv1.ListToolsResponse, error) {
		return s.agents.ListTools(ctx, &agentv1.ListToolsRequest{AgentId: agentID})
	})
	if !create || !errors.Is(err, fault.NotFound) {
		return err
	}
	var full error
	_, err = client.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
		resp, err := s.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, RequestId: "mcp-create-" +
				id.Derived("", agentID),
		})
		if errors.Is(err, fault.QuotaExceeded) || errors.Is(err, fault.StorageFull) {
			full, err = err, nil
		}
		return resp, err
	})
	err = cmp.Or(full, err)
	if errors.Is(err, fault.AlreadyExists) {
		return nil // a concurrent session created it
	}
	return err
}

// serverOptions are what distinguishes the servers of agents.
type serverOptions struct {
	agentID string
	tools   string
	stdio   bool // the session lasts: it follows the agent, and clients may subscribe to resources
	absent  bool // no server could be reached yet

	address, elsewhere string // for messages
}

// agentServer is the MCP server of one agent, for one client.
type agentServer struct {
	*Service
	serverOptions
	as  func(context.Context) context.Context // returns a context whose calls are made as the client
	srv *sdk.Server

	// admitted is closed once the agent is known to exist or known not to; refusal is set
	// before, if it does not.
	admitted chan struct{}
	refusal  error

	sync   chan struct{}   // capacity 1: a lock on the lists; see the method lock
	tooled bool            // syncTools has filled the list of tools; guarded by sync
	shown  map[string]bool // URIs in the list of plans; guarded by sync

	subscriptions subscriptions
}

// lock takes the lock of the lists of tools and plans. It waits until the lock is free, and returns the error of
// ctx if that ends before; unlock then does nothing.
func (a *agentServer) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case a.sync <- struct{}{}:
		return func() { <-a.sync }, nil
	case <-ctx.Done():
		return func() {}, ctx.Err()
	}
}

// server returns the MCP server of one agent for one client. as returns a context whose calls
// are made as that client.
func (s *Service) server(o serverOptions, as func(context.Context) context.Context) *agentServer {
	a := &agentServer{
		Service: s, serverOptions: o, as: as, shown: map[string]bool{}, sync: make(chan struct{}, 1),
		admitted:      make(chan struct{}),
		subscriptions: newSubscriptions(),
	}
	absent := ""
	if o.absent {
		absent = o.absence()
	} else {
		close(a.admitted)
	}
	opts := &sdk.ServerOptions{
		Instructions: instructionsOf(o.tools, absent),
		Capabilities: &sdk.ServerCapabilities{
			Tools: &sdk.ToolCapabilities{ListChanged: true}, Resources: &sdk.ResourceCapabilities{ListChanged: true},
		},
		// A cached list would show an earlier state of the agents' work.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.TTLMs, c.CacheScope = 0, "private" },
	}
	if o.stdio { // the handlers also add the capability
		opts.SubscribeHandler, opts.UnsubscribeHandler = a.subscribe, a.unsubscribe
	}
	a.srv = sdk.NewServer(&sdk.Implementation{
		Name: "quartet", Title: "Quartet: durable memory for agents",
		Version: s.cfg.Version,
	}, opts)
	a.templates()
	a.srv.AddReceivingMiddleware(a.live)
	a.srv.AddSendingMiddleware(a.acknowledged)
	return a
}

// attend completes the lists once the agent is admitted, and keeps them and the subscribed
// resources up to date until ctx ends.
func (a *agentServer) attend(ctx context.Context, admitted <-chan error) {
	if a.absent {
		select {
		case a.refusal = <-admitted:
			close(a.admitted)
		case <-ctx.Done():
			return
		}
		if a.refusal != nil {
			return // every call says why
		}
		for {
			err := a.syncTools(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil || !client.Passing(err) {
				return // the next tools/list says why
			}
		}
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watchSubscribed(ctx)
	}()
	a.follow(ctx)
	<-watched
}

// reached returns an error if the agent does not exist, or if no server can be reached yet. In a
// session that began without a server it waits for one, at most Config.Patience.
func (a *agentServer) reached(ctx context.Context) error {
	patience := time.NewTimer(a.cfg.Patience)
	defer patience.Stop()
	select {
	case <-a.admitted:
		return a.refusal
	default:
	}
	select {
	case <-a.admitted:
		return a.refusal
	case <-patience.C:
		return a.unreachable()
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
}

// live is the middleware of requests that updates the lists before they are read, starts
// subscriptions, and follows the agent while a client that is not on stdio listens. It sends
// calls of tools to the agent plane, which checks them.
func (a *agentServer) live(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		switch method {
		case "tools/list":
			if a.reached(ctx) != nil {
				break // without tools: a notification follows when there are some
			}
			if err := a.syncTools(ctx); err != nil {
				return nil, a.protocolError(err)
			}
		case "resources/list":
			if a.reached(ctx) != nil {
				break
			}
			if err := a.syncPlans(ctx); err != nil {
				return nil, a.protocolError(err)
			}
		case "resources/read":
			if err := a.reached(ctx); err != nil {
				return nil, a.protocolError(err)
			}
			return withText(next(ctx, method, req))
		case "resources/subscribe":
			defer a.subscriptions.start()
		case "tools/call":
			if call, ok := req.(*sdk.CallToolRequest); ok {
				return a.call(ctx, call)
			}
		case "subscriptions/listen":
			if a.stdio {
				break // the session follows the agent already
			}
			watching, cancel := context.WithCancel(ctx)
			followed := make(chan struct{})
			go func() {
				defer close(followed)
				a.follow(watching)
			}()
			defer func() {
				cancel()
				<-followed
			}()
		}
		return next(ctx, method, req)
	}
}
