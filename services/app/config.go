package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"quartet/pkg/certs"
	"quartet/pkg/conf"
	"quartet/pkg/lease"
	"quartet/pkg/natsd"
	"quartet/services/agent"
	"quartet/services/board"
	"quartet/services/identity"
	"quartet/services/quota"
	"quartet/services/task"
)

// Services are the names that a process can serve, in the order of the picture
// in ARCHITECTURE.
var Services = []string{"agent", "work", "task", "waiting", "board", "identity", "scheduler", "gateway", "worker"}

// planes have a journal.
var planes = []string{"agent", "work", "task", "waiting", "board", "identity"}

// Config is all that an operator sets.
type Config struct {
	DataDir   string
	HomeDir   string
	NATSURL   string
	GRPCAddr  string
	HTTPAddr  string
	PublicURL string
	Addresses map[string]string
	Replicas  int

	AdvertiseAddr  string
	AdvertiseName  string
	Partitions     map[string]string
	PartitionLease time.Duration

	MaxStore  int
	Publish   bool
	LogLevel  string
	PProfAddr string

	MetricsAddr     string
	OTLPEndpoint    string
	OTLPProtocol    string
	TraceRatio      float64
	ServiceName     string
	ServiceInstance string

	KeyFile string

	TLS certs.Files
	// NATS is how the servers of NATSURL let this process in; its URL is NATSURL.
	NATS natsd.Remote

	QuotaAgents     int
	QuotaItems      int
	QuotaMiB        int
	QuotaRequests   int
	NamespaceQuotas map[string]string

	Auth           string
	BootstrapToken string
	OIDC           identity.TokensConfig

	NamespaceWeights map[string]string
	MaxChildren      int

	DefaultRecheck    time.Duration
	NamespaceRechecks map[string]string

	CommandLease time.Duration
	StepLease    time.Duration
	CancelWait   time.Duration
	BoardBudget  int

	WorkerID       string
	WorkerRoots    []string
	WorkerCapacity int
	WorkerPools    []string
	WorkerLabels   map[string]string
	// WorkerMemory is in MiB; it and WorkerProcesses bound every command, 0: not at all.
	WorkerMemory    int
	WorkerProcesses int
	// WorkerGuard ends what commands leave should this process be killed; see
	// worker.Config. It is no setting: the binary names itself.
	WorkerGuard []string

	// Serve are the services of this process; empty: all of them.
	Serve []string
}

// Flags declares the settings on a command's flags. Every setting can also be
// given as QUARTET_<NAME> or in a file (pkg/conf).
func (c *Config) Flags(fs *pflag.FlagSet) *conf.Set {
	s := conf.New(fs)
	s.String(&c.DataDir, "data-dir", defaultDataDir(), "Where journals, agent homes and the installation's key live")
	s.String(&c.HomeDir, "home-dir", "", "Where the agents' homes live; several instances of work share it; empty: <data-dir>/home")
	s.String(&c.NATSURL, "nats-url", "", "NATS server or cluster; empty: an embedded server in data-dir")
	s.String(&c.NATS.User, "nats-user", "", "The user to name to the servers of nats-url")
	s.String(&c.NATS.PasswordFile, "nats-password-file", "", "A file with that user's password")
	s.String(&c.NATS.CredsFile, "nats-creds-file", "", "A file with a JWT and its seed, as nsc writes them, instead of nats-user")
	s.String(&c.NATS.NKeyFile, "nats-nkey-file", "", "A file with the seed of an nkey, instead of nats-user")
	s.String(&c.NATS.TLS.CA, "nats-tls-ca-file", "", "Who signs the certificates of the servers of nats-url (PEM); this or another nats-tls setting switches TLS on")
	s.String(&c.NATS.TLS.Cert, "nats-tls-cert-file", "", "A certificate to show to them (PEM)")
	s.String(&c.NATS.TLS.Key, "nats-tls-key-file", "", "Its private key (PEM)")
	s.String(&c.NATS.ServerName, "nats-tls-server-name", "", "The name that their certificates must have; empty: that of each address")
	s.String(&c.GRPCAddr, "grpc-addr", "127.0.0.1:7481", "Where gRPC is served")
	s.String(&c.HTTPAddr, "http-addr", "127.0.0.1:7480", "Where REST, events and OpenAPI are served")
	s.String(&c.PublicURL, "public-url", "", "How outside systems reach http-addr, for trigger URLs; empty: http://<http-addr>")
	s.Map(&c.Addresses, "addresses", nil, "Services that other processes serve, as name=host:port")
	s.String(&c.AdvertiseAddr, "advertise-addr", "", "Where other instances of its services reach this process, host:port; empty: grpc-addr, with the machine's name if that is of all interfaces")
	s.String(&c.AdvertiseName, "advertise-name", "", "The name in this process's certificate, if it is not the host in advertise-addr")
	s.Map(&c.Partitions, "partitions", nil, "Into how many parts a new installation's planes are split, each held by one instance, as work=6,waiting=6, 1 to 64; empty: 6 of each with nats-url, else 1. It cannot be changed later")
	s.Duration(&c.PartitionLease, "partition-lease", lease.DefaultTerm, "How long at most the partitions of an instance that was killed stand still until others have them, 1s to 1h")
	s.Int(&c.Replicas, "replicas", 1, "Copies of every journal; 3 in a cluster")
	s.Int(&c.MaxStore, "max-store-mib", 0, "Disk space of the embedded server's streams in MiB; 0: what is reasonable for the disk")
	s.Bool(&c.Publish, "publish-events", true, "Copy events to the EVENTS stream as CloudEvents for outsiders")
	s.String(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	s.String(&c.PProfAddr, "pprof-addr", "", "Loopback address for profiles; empty: none")
	s.String(&c.MetricsAddr, "metrics-addr", "", "Where GET /metrics is served to Prometheus by a process without a gateway, which serves it too; it asks for no credential and names no tenant; empty: nowhere")
	s.String(&c.OTLPEndpoint, "otlp-endpoint", "", "OpenTelemetry collector that traces go to, as http://127.0.0.1:4317; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, else nothing is traced")
	s.String(&c.OTLPProtocol, "otlp-protocol", "", "How it is reached, grpc or http/protobuf; empty: as OTEL_EXPORTER_OTLP_PROTOCOL says, else grpc")
	s.Float(&c.TraceRatio, "trace-ratio", 1, "Which share of the traces that begin here is kept, 0 to 1; what callers sampled is")
	s.String(&c.ServiceName, "service-name", "", "This process's service.name in traces; empty: as OTEL_SERVICE_NAME says, else quartet")
	s.String(&c.ServiceInstance, "service-instance", "", "Its service.instance.id; empty: the host's name")
	s.String(&c.KeyFile, "key-file", "", "The installation's key, shared by its processes; empty: <data-dir>/key, made if missing")
	s.String(&c.Auth, "auth", AuthAuto, "required: every call takes a credential; off: calls without one are the admin's, on loopback only; auto: off if grpc-addr and http-addr are loopback, else required")
	s.Secret(&c.BootstrapToken, "bootstrap-token", "Lets in whoever has it as admin, for making the first keys; at least 32 characters; empty: nobody")
	s.String(&c.OIDC.Issuer, "oidc-issuer", "", "An OpenID provider whose tokens (JWT) let in beside keys; empty: none")
	s.String(&c.OIDC.Audience, "oidc-audience", "", "What must be among the audiences of its tokens")
	s.String(&c.OIDC.PrincipalClaim, "oidc-principal-claim", "sub", "The claim that says who acts; on events it stands behind oidc:")
	s.String(&c.OIDC.Namespace, "oidc-namespace", "", "The namespace of all its tokens; this or oidc-namespace-claim")
	s.String(&c.OIDC.NamespaceClaim, "oidc-namespace-claim", "", "The claim that names a token's namespace; a path as in realm.tenant may be given")
	s.String(&c.OIDC.RoleClaim, "oidc-role-claim", "", "The claim, a text or a list, that oidc-roles reads; a path as in realm_access.roles may be given")
	s.Map(&c.OIDC.Roles, "oidc-roles", nil, "What its values may do, as admins=admin,developers=operator; of several the mightiest")
	s.String(&c.TLS.Cert, "tls-cert-file", "", "The server's certificate (PEM, with its chain), for grpc-addr and http-addr and for showing to other services; empty: plain text")
	s.String(&c.TLS.Key, "tls-key-file", "", "Its private key (PEM)")
	s.String(&c.TLS.CA, "tls-ca-file", "", "Who signs the certificates of the services in addresses (PEM); empty, with a certificate of its own: the system's authorities")
	s.String(&c.TLS.ClientCA, "tls-client-ca-file", "", "Who signs the certificates of clients (PEM); if given, other processes' services must show one")
	s.Bool(&c.TLS.RequireClient, "tls-require-client-cert", false, "Every client of grpc-addr and http-addr must show a certificate")
	s.Int(&c.QuotaAgents, "quota-agents", 0, "How many agents a namespace may have, children included; 0: no limit")
	s.Int(&c.QuotaItems, "quota-open-items", 0, "How many open work items a namespace may have; 0: no limit")
	s.Int(&c.QuotaMiB, "quota-mib", 0, "How much a namespace may write to journals, ever, in MiB; 0: no limit")
	s.Int(&c.QuotaRequests, "quota-requests", 0, "How many requests a second a namespace may send to each process, a second's worth at once; 0: no limit")
	s.Map(&c.NamespaceQuotas, "namespace-quotas", nil, "Namespaces with quotas of their own, as acme.agents=100,acme.open-items=0,acme.mib=1024,acme.requests=50")
	s.Map(&c.NamespaceWeights, "namespace-weights", nil, "Shares of the turns that runners of all namespaces take, as a=3,b=1, 1 to 1000; 1 where none is given")
	s.Int(&c.MaxChildren, "max-children", agent.DefaultMaxChildren, "How many private children an agent supervises at a time")
	s.Duration(&c.DefaultRecheck, "default-recheck", 0, "After how long the owner of a wait is reminded of it where WaitFor does not say; 0: never")
	s.Map(&c.NamespaceRechecks, "namespace-rechecks", nil, "Namespaces with a default-recheck of their own, as a=30m,b=0")
	s.Duration(&c.CommandLease, "command-lease", task.LeaseTerm, "How long a worker may be silent about a command before that is lost or run again, 15s to 24h")
	s.Duration(&c.StepLease, "step-lease", board.DefaultLeaseTerm, "How long a worker may be silent about a board's step before it is given back, 1s to 24h")
	s.Duration(&c.CancelWait, "child-cancel-timeout", board.DefaultCancelWait, "How long failing or cancelling a board waits for its workers to stop, at most 5m")
	s.Int(&c.BoardBudget, "board-token-budget", board.DefaultTokenBudget, "How many tokens the summary of boards in a prompt may take, 100 to 100000")
	s.String(&c.WorkerID, "worker-id", "local", "This worker's lasting name")
	s.Strings(&c.WorkerRoots, "worker-roots", nil, "Directories that commands may run in, the first by default; empty: the working directory")
	s.Int(&c.WorkerCapacity, "worker-capacity", 4, "How many commands run at once")
	s.Strings(&c.WorkerPools, "worker-pools", nil, "Pools whose commands this worker takes; empty: default")
	s.Map(&c.WorkerLabels, "worker-labels", nil, "Labels of this worker that commands may ask for, as os=linux,gpu=yes")
	s.Int(&c.WorkerMemory, "worker-max-memory-mib", 0, "The most memory of any command of this worker, in MiB; 0: no limit")
	s.Int(&c.WorkerProcesses, "worker-max-processes", 0, "The most processes of any command of this worker; 0: no limit")
	return s
}

func defaultDataDir() string {
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, ".quartet")
	}
	return ".quartet"
}

// Complete checks the settings and fills in what follows from others.
func (c *Config) Complete() error {
	if c.DataDir == "" {
		return errors.New("data-dir is empty; name a directory for journals and agent homes")
	}
	abs, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("data-dir %q: %w", c.DataDir, err)
	}
	c.DataDir = abs
	if c.HomeDir == "" {
		c.HomeDir = filepath.Join(c.DataDir, "home")
	}
	if len(c.Serve) == 0 {
		c.Serve = Services
	}
	for _, name := range c.Serve {
		if !slices.Contains(Services, name) {
			return fmt.Errorf("no service is called %q; there are %s", name, strings.Join(Services, ", "))
		}
	}
	if c.NATSURL == "" && len(c.Serve) != len(Services) {
		return errors.New("some services alone need a NATS server that all processes share: give nats-url")
	}
	if err := c.checkPartitions(); err != nil {
		return err
	}
	if err := errors.Join(c.completeAuth(), c.TLS.Check(), c.remote().Check()); err != nil {
		return err
	}
	if c.MaxChildren < 0 {
		return fmt.Errorf("max-children is %d; it must be at least 1, or 0 for %d", c.MaxChildren, agent.DefaultMaxChildren)
	}
	// A worker speaks every 10 s.
	if c.CommandLease != 0 && (c.CommandLease < 15*time.Second || c.CommandLease > 24*time.Hour) {
		return fmt.Errorf("command-lease is %s; it must be 15s to 24h", c.CommandLease)
	}
	if c.WorkerMemory < 0 || c.WorkerProcesses < 0 {
		return fmt.Errorf("worker-max-memory-mib is %d, worker-max-processes %d; they must be at least 1, or 0 for no limit", c.WorkerMemory, c.WorkerProcesses)
	}
	if c.KeyFile == "" {
		c.KeyFile = filepath.Join(c.DataDir, "key")
	}
	if len(c.WorkerRoots) == 0 {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("worker-roots: %w", err)
		}
		c.WorkerRoots = []string{wd}
	}
	return nil
}

// remote is the way to the servers of nats-url.
func (c *Config) remote() natsd.Remote {
	r := c.NATS
	r.URL, r.TLS.Prefix = c.NATSURL, "nats-"
	return r
}

// weights are the shares of namespaces as numbers.
func (c *Config) weights() (map[string]int, error) {
	out := map[string]int{}
	for namespace, text := range c.NamespaceWeights {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > agent.MaxWeight {
			return nil, fmt.Errorf("namespace-weights: the weight of %q is %q; it must be a number from 1 to %d", namespace, text, agent.MaxWeight)
		}
		out[namespace] = n
	}
	return out, nil
}

// quotas are the limits of namespaces.
func (c *Config) quotas() (*quota.Limits, error) {
	return quota.Parse(map[string]int{
		quota.Agents: c.QuotaAgents, quota.OpenItems: c.QuotaItems, quota.MiB: c.QuotaMiB, quota.Requests: c.QuotaRequests,
	}, c.NamespaceQuotas)
}

// rechecks are the namespaces' own reminders as spans.
func (c *Config) rechecks() (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	for namespace, text := range c.NamespaceRechecks {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("namespace-rechecks: that of %q is %q; it must be a duration such as 30m, or 0", namespace, text)
		}
		out[namespace] = d
	}
	return out, nil
}

// serves says whether this process has a module. Backups are made where the
// agents' homes are.
func (c *Config) serves(name string) bool {
	if name == "backup" {
		name = "work"
	}
	return slices.Contains(c.Serve, name)
}
