package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"quartet/pkg/bus"
	"quartet/pkg/certs"
	"quartet/pkg/conf"
	"quartet/pkg/confine"
	"quartet/pkg/connlimit"
	"quartet/pkg/lease"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/varz"
	"quartet/pkg/sandboxes"
	"quartet/services/agent"
	"quartet/services/board"
	"quartet/services/console/signin"
	"quartet/services/identity"
	"quartet/services/storage/archives"
	"quartet/services/task"
	"quartet/services/worker"
)

// Services are the names of the services that a process can serve.
var Services = []string{"agent", "work", "task", "waiting", "board", "identity", "scheduler", "gateway", "worker"}

// planes are the services that have a journal.
var planes = []string{"agent", "work", "task", "waiting", "board", "identity", "audit"}

// Config holds all settings that an operator can set. Flags declares them, with their
// meaning, unit and default; Complete must be called before use.
type Config struct {
	DataDir  string
	HomeDir  string
	NATSURL  string
	GRPCAddr string
	HTTPAddr string
	// NATSMonitorURL is where the settings of the servers of NATSURL are read.
	NATSMonitorURL string
	PublicURL      string
	// MaxConnections bounds the connections of grpc-addr and of http-addr.
	MaxConnections int
	Addresses      map[string]string
	Replicas       int

	AdvertiseAddr  string
	AdvertiseName  string
	Partitions     map[string]string
	PartitionLease time.Duration

	MaxStore  int
	ScrubRate int // MiB per second
	// SegmentSize is the size in MiB at which a segment of a journal is closed.
	SegmentSize int
	// EventsSize is how many MiB the stream EVENTS has at most.
	EventsSize int
	// OutputDays is for how many days the output of commands is kept; 0: always.
	OutputDays int
	// HistoryDays is the age in days at which events that nothing needs are removed; 0: they stay.
	HistoryDays          int
	NamespaceHistoryDays map[string]string // HistoryDays of single namespaces
	Day                  time.Duration     // how long a day of HistoryDays is; 0: 24 h. Tests only.
	// Archive is where closed segments of journals are kept.
	Archive archives.Settings
	bucket  *archives.Bucket
	// EraseAfter is how long after its deletion everything that an agent had is erased; 0: never.
	EraseAfter time.Duration
	// SnapshotSize is after how many MiB of a journal a snapshot is written.
	SnapshotSize int
	Publish      bool
	LogLevel     string
	PProfAddr    string

	MetricsAddr     string
	MetricsAuth     string
	OTLPEndpoint    string
	OTLPProtocol    string
	TraceRatio      float64
	ServiceName     string
	ServiceInstance string

	KeyFile string

	TLS certs.Files
	// NATS holds the credentials for the servers of NATSURL. Its URL is ignored.
	NATS natsd.Remote

	QuotaAgents      int
	QuotaItems       int
	QuotaMiB         int
	QuotaRequests    int
	QuotaDeliveries  int
	QuotaDeliveryKiB int
	QuotaStreams     int
	MaxMemory        int // MiB
	NamespaceQuotas  map[string]string

	Auth           string
	Open           bool
	BootstrapToken string
	OIDC           identity.TokensConfig
	SignIn         signin.Config

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
	rootIsHome     bool // no root is named, and the working directory is the user's home or around it
	WorkerIsolate  string
	WorkerCapacity int
	WorkerPools    []string
	WorkerLabels   map[string]string
	// WorkerMemory is in MiB; it and WorkerProcesses limit every command; 0: no limit.
	WorkerMemory    int
	WorkerProcesses int
	EmbeddedWorker  string // auto, on or off
	WorkerNetwork   string // what commands reach: none, outside or all
	WorkerReadable  []string
	WorkerHidden    []string
	// WorkerUnconfined lets commands do whatever this process may.
	WorkerUnconfined bool
	// WorkerConfiner is the command line of the process that confines commands; see
	// sandboxes.Config. It is not a setting: the binary sets it to itself.
	WorkerConfiner []string
	// SecretFiles are files with secrets from which settings were read, by the name of what named each. It is not a
	// setting.
	SecretFiles map[string]string
	// WorkerGuard is the command line of the guard process; see worker.Config. It is
	// not a setting: the binary sets it to itself.
	WorkerGuard []string

	// Serve are the names of the services of this process; empty: all of Services.
	Serve []string
}

// Flags declares the settings on fs. Every setting can also be given as QUARTET_<NAME> or in a
// file; see conf.Set.Load of the result.
func (c *Config) Flags(fs *pflag.FlagSet) *conf.Set {
	s := conf.New(fs)
	s.String(&c.DataDir, "data-dir", defaultDataDir(),
		"Directory of journals, agents' homes and the installation's key")
	s.String(&c.HomeDir, "home-dir", "", "Directory of the agents' homes, shared by all instances of work; empty: "+
		"<data-dir>/home")
	s.String(&c.NATSURL, "nats-url", "", "NATS server or cluster; empty: an embedded server in data-dir")
	s.String(&c.NATSMonitorURL, "nats-monitor-url", "", "Monitoring ports of the servers of nats-url, as "+
		"http://nats-1:8222, separated by commas: a server whose sync_interval or max_payload would lose mutations "+
		"is refused; empty: sync_interval is not verified")
	s.String(&c.NATS.User, "nats-user", "", "User name for the servers of nats-url")
	s.String(&c.NATS.PasswordFile, "nats-password-file", "", "File with the password of nats-user")
	s.String(&c.NATS.CredsFile, "nats-creds-file", "", "File with a JWT and its seed, as nsc writes it, instead of "+
		"nats-user")
	s.String(&c.NATS.NKeyFile, "nats-nkey-file", "", "File with the seed of an nkey, instead of nats-user")
	s.String(&c.NATS.TLS.CA, "nats-tls-ca-file", "", "Certificates of the authorities that sign the certificates of "+
		"the servers of nats-url (PEM); each nats-tls setting enables TLS")
	s.String(&c.NATS.TLS.Cert, "nats-tls-cert-file", "", "Client certificate for the servers of nats-url (PEM)")
	s.String(&c.NATS.TLS.Key, "nats-tls-key-file", "", "Private key of the certificate (PEM)")
	s.String(&c.NATS.ServerName, "nats-tls-server-name", "", "Name that the certificates of the servers of nats-url "+
		"must have; empty: the host of each address")
	s.String(&c.GRPCAddr, "grpc-addr", "127.0.0.1:7481", "Address on which gRPC is served")
	s.String(&c.HTTPAddr, "http-addr", "127.0.0.1:7480", "Address on which REST, events and OpenAPI are served")
	s.String(&c.PublicURL, "public-url", "", "URL at which outside systems reach http-addr, for trigger URLs; empty: "+
		"http://<http-addr>, with TLS https://<http-addr>")
	s.Int(&c.MaxConnections, "max-connections", connlimit.DefaultTotal,
		"Maximum number of connections of grpc-addr, and of http-addr; half of it for one source address")
	s.Map(&c.Addresses, "addresses", nil, "Addresses of services that other processes serve, as name=host:port")
	s.String(&c.AdvertiseAddr, "advertise-addr", "", "Address at which other instances reach this process, "+
		"host:port; empty: grpc-addr, with the machine's name if it listens on all interfaces")
	s.String(&c.AdvertiseName, "advertise-name", "", "Name in this process's certificate, if it differs from the "+
		"host in advertise-addr")
	s.Map(&c.Partitions, "partitions", nil, "Number of partitions of a new installation's planes, as "+
		"work=6,waiting=6, 1 to 64; each is held by one instance; empty: 6 of each with nats-url, else 1. It cannot "+
		"be changed later")
	s.Duration(&c.PartitionLease, "partition-lease", lease.DefaultTerm,
		"Maximum time until other instances take over the partitions of one that was killed, 1s to 1h")
	s.Int(&c.Replicas, "replicas", 1, "Number of copies of every journal; 3 in a cluster")
	s.Int(&c.ScrubRate, "scrub-rate", 2, "MiB per second at which the embedded server's journals are read again in "+
		"the background, to find damage; at most one pass an hour; 0: none")
	s.Int(&c.SegmentSize, "segment-mib", 64, "Size in MiB at which a partition's journal continues in a new segment, "+
		"1 to 4096, or 0 for 64; segments are read, kept and removed as a whole")
	c.Archive.Flags(s)
	s.Duration(&c.EraseAfter, "erase-after", 24*time.Hour, "Time after the deletion of an agent until everything "+
		"that it had is erased from journals, archive, snapshots, EVENTS and homes, 1s to 8760h; 0: never")
	s.Int(&c.SnapshotSize, "snapshot-mib", 16, "MiB of a partition's journal after which a snapshot of its state is "+
		"written, 1 to 4096, or 0 for 16; a start reads the newest snapshot and the journal behind it")
	s.Int(&c.MaxStore, "max-store-mib", 0, "Disk space of the embedded server's streams in MiB; 0: chosen by the "+
		"size of the disk")
	s.Bool(&c.Publish, "publish-events", true, "Copy events to the EVENTS stream as CloudEvents for external consumers")
	s.Int(&c.EventsSize, "events-mib", bus.DefaultBytes>>20, "MiB of events that EVENTS keeps for external "+
		"consumers, at most a quarter of the store and 7 days; 1 to 1048576, or 0 for 128. The journals keep all "+
		"events, or those of history-days")
	s.Int(&c.OutputDays, "output-days", 30, "Days for which the output of commands is kept after it was written, at "+
		"most 3650; 0: always. That of a deleted agent is removed when its commands have ended")
	s.Int(&c.HistoryDays, "history-days", 0, "Days for which events are kept that nothing needs any more, such as "+
		"rounds that no later context shows, the past of items and logs of ended boards; 2 to 3650; 0: always")
	s.Map(&c.NamespaceHistoryDays, "namespace-history-days", nil,
		"history-days of single namespaces, as acme=90,beta=0")
	s.String(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	s.String(&c.PProfAddr, "pprof-addr", "", "Loopback address on which profiles are served; empty: none")
	s.String(&c.MetricsAddr, "metrics-addr", "", "Address on which GET /metrics is served to Prometheus, for "+
		"processes without a gateway, which serves it too; it names no tenant, and demands no credential unless "+
		"metrics-auth is required; empty: none")
	s.String(&c.MetricsAuth, "metrics-auth", AuthAuto, "required: GET /metrics needs a key of role admin, operator "+
		"or integration, on http-addr and on metrics-addr; off: it needs none; auto: required on an http-addr that "+
		"other machines reach, none on metrics-addr")
	s.String(&c.OTLPEndpoint, "otlp-endpoint", "", "OpenTelemetry collector to which traces are sent, such as "+
		"http://127.0.0.1:4317; empty: the value of OTEL_EXPORTER_OTLP_ENDPOINT, else nothing is traced")
	s.String(&c.OTLPProtocol, "otlp-protocol", "", "Protocol of the collector, grpc or http/protobuf; empty: the "+
		"value of OTEL_EXPORTER_OTLP_PROTOCOL, else grpc")
	s.Float(&c.TraceRatio, "trace-ratio", 1, "Share of the traces started by this process that are recorded, 0 to 1; "+
		"traces that callers sampled are always recorded")
	s.String(&c.ServiceName, "service-name", "", "This process's service.name in traces; empty: the value of "+
		"OTEL_SERVICE_NAME, else quartet")
	s.String(&c.ServiceInstance, "service-instance", "", "This process's service.instance.id in traces; empty: the "+
		"host's name")
	s.String(&c.KeyFile, "key-file", "", "File with the installation's keys, shared by its processes, which read it "+
		"again when it changes; empty: <data-dir>/key, created if missing")
	s.String(&c.Auth, "auth", AuthAuto, "required: every call needs a credential; local: the same, and clients of "+
		"this user on this machine find one, with the role installation_admin, in a file; off: calls without a "+
		"credential act as admin; auto: local if grpc-addr and http-addr are loopback, as local and off demand, else "+
		"required")
	s.Bool(&c.Open, "open", false, "The same as auth=off: every user, web page and command of this machine that can "+
		"connect is admin")
	s.Secret(&c.BootstrapToken, "bootstrap-token", "Credential that acts as admin, for creating the first keys; at "+
		"least 32 characters; empty: none")
	s.String(&c.OIDC.Issuer, "oidc-issuer", "",
		"OpenID provider whose tokens (JWT) are accepted beside keys; empty: none")
	s.String(&c.OIDC.Audience, "oidc-audience", "", "Value that must be among the audiences of a token")
	s.String(&c.OIDC.PrincipalClaim, "oidc-principal-claim", "sub", "Claim that is the principal; events record it "+
		"with the prefix oidc:")
	s.String(&c.OIDC.Namespace, "oidc-namespace", "", "Namespace of all tokens; either this or oidc-namespace-claim")
	s.String(&c.OIDC.NamespaceClaim, "oidc-namespace-claim", "", "Claim that names a token's namespace; may be a "+
		"path such as realm.tenant")
	s.String(&c.OIDC.RoleClaim, "oidc-role-claim", "", "Claim, a text or a list, that oidc-roles maps to roles; may "+
		"be a path such as realm_access.roles")
	s.Map(&c.OIDC.Roles, "oidc-roles", nil, "Role for each value of oidc-role-claim, as "+
		"platform=installation_admin,admins=admin,developers=operator; of several the most permissive applies")
	s.String(&c.SignIn.ClientID, "oidc-client-id", "", "Id of this server at the OpenID provider, with which people "+
		"sign in to the console; empty: they sign in with keys and tokens")
	s.String(&c.SignIn.SecretFile, "oidc-client-secret-file", "", "File with the secret of oidc-client-id; empty: "+
		"the client is a public one")
	s.Strings(&c.SignIn.Scopes, "oidc-scopes", []string{"openid"}, "Scopes that a sign-in to the console requests of "+
		"the OpenID provider, for the claims of namespace and role; openid is always among them")
	s.String(&c.SignIn.RedirectURL, "oidc-redirect-url", "", "Address at which the OpenID provider sends browsers "+
		"back, which ends in /ui/oidc/callback; empty: that path at public-url, or if http-addr is loopback at the "+
		"host of the browser's address")
	s.String(&c.TLS.Cert, "tls-cert-file", "", "The server's certificate (PEM, with its chain) for grpc-addr, "+
		"http-addr and calls to other services; empty: plain text")
	s.String(&c.TLS.Key, "tls-key-file", "", "Private key of the certificate (PEM)")
	s.String(&c.TLS.CA, "tls-ca-file", "", "Certificates of the authorities that sign the certificates of the "+
		"services in addresses (PEM); empty, with tls-cert-file: the system's authorities")
	s.String(&c.TLS.ClientCA, "tls-client-ca-file", "", "Certificates of the authorities that sign the certificates "+
		"of clients (PEM); if given, services of other processes must present one")
	s.Bool(&c.TLS.RequireClient, "tls-require-client-cert", false, "Demand a certificate of every client of "+
		"grpc-addr and http-addr")
	s.Int(&c.QuotaAgents, "quota-agents", autoQuota, "Maximum number of agents of a namespace, children included; 0: "+
		"no limit; -1: 20000 where credentials are required, else no limit")
	s.Int(&c.QuotaItems, "quota-open-items", autoQuota, "Maximum number of open work items of a namespace, without "+
		"those of deleted agents; 0: no limit; -1: 1000000 where credentials are required, else no limit")
	s.Int(&c.QuotaMiB, "quota-mib", autoQuota, "Maximum size of what a namespace has written to journals, without "+
		"what was removed, in MiB; 0: no limit; -1: 16384 where credentials are required, else no limit")
	s.Int(&c.QuotaRequests, "quota-requests", autoQuota, "Maximum requests per second of a namespace to each "+
		"process, with bursts of one second's requests; 0: no limit; -1: 50000 where credentials are required, else "+
		"no limit")
	s.Int(&c.QuotaDeliveries, "quota-deliveries", autoQuota, "Maximum deliveries per second to the triggers of a "+
		"namespace, half of it to one trigger, with bursts of ten seconds' deliveries; 0: no limit; -1: 200 where "+
		"credentials are required, else no limit")
	s.Int(&c.QuotaDeliveryKiB, "quota-delivery-kib", autoQuota, "Maximum KiB per second of such deliveries, in the "+
		"same way; 0: no limit; -1: 2048 where credentials are required, else no limit")
	s.Int(&c.QuotaStreams, "quota-streams", autoQuota, "Maximum number of streams of a namespace that are open at "+
		"each process, half of it of one credential; 0: no limit but 4000 for all namespaces; -1: 1000 where "+
		"credentials are required, else 0")
	s.Int(&c.MaxMemory, "max-memory-mib", 0, "Memory that this process may use, in MiB: what is not used leaves "+
		"memory from a third of it on, and from about half on nothing new is accepted; 0: three quarters of the "+
		"memory of the machine, or of its control group")
	s.Map(&c.NamespaceQuotas, "namespace-quotas", nil, "Quotas of single namespaces, as "+
		"acme.agents=100,acme.open-items=0,acme.mib=1024,acme.requests=50")
	s.Map(&c.NamespaceWeights, "namespace-weights", nil, "Weights of namespaces for the turns that runners of all "+
		"namespaces take, as a=3,b=1, 1 to 1000; default 1")
	s.Int(&c.MaxChildren, "max-children", agent.DefaultMaxChildren, "Maximum number of private children that an "+
		"agent supervises at a time")
	s.Duration(&c.DefaultRecheck, "default-recheck", 0, "Time after which the owner of a wait is reminded of it, if "+
		"the wait sets none; 0: never")
	s.Map(&c.NamespaceRechecks, "namespace-rechecks", nil, "default-recheck of single namespaces, as a=30m,b=0")
	s.Duration(&c.CommandLease, "command-lease", task.LeaseTerm, "Time without a heartbeat of the worker after which "+
		"a command is lost or run again, 15s to 24h")
	s.Duration(&c.StepLease, "step-lease", board.DefaultLeaseTerm, "Time without a heartbeat of the worker after "+
		"which a board's step is released, 1s to 24h")
	s.Duration(&c.CancelWait, "child-cancel-timeout", board.DefaultCancelWait,
		"Time that failing or cancelling a board waits for its workers to stop, at most 5m")
	s.Int(&c.BoardBudget, "board-token-budget", board.DefaultTokenBudget,
		"Maximum size of the summary of boards in a model's context in tokens, 100 to 100000")
	s.String(&c.WorkerID, "worker-id", "local", "Name of this worker, the same after each restart")
	s.Strings(&c.WorkerRoots, "worker-roots", nil, "Directories in which commands may run; the first is the default; "+
		"empty: the working directory, unless it is the home or around it")
	s.String(&c.WorkerIsolate, "worker-isolate", string(worker.IsolateNone),
		"Which agents have a directory of their own below the only one of worker-roots: none (all share them), "+
			"namespace (those of a namespace share one) or agent")
	s.Int(&c.WorkerCapacity, "worker-capacity", 4, "Maximum number of commands that run at once")
	s.Strings(&c.WorkerPools, "worker-pools", nil, "Pools whose commands this worker executes; empty: default")
	s.Map(&c.WorkerLabels, "worker-labels", nil, "Labels of this worker, which commands can require, as "+
		"os=linux,gpu=yes")
	s.Int(&c.WorkerMemory, "worker-max-memory-mib", 0,
		"Maximum memory of one command of this worker in MiB; 0: no limit")
	s.Int(&c.WorkerProcesses, "worker-max-processes", 0, "Maximum number of processes of one command of this worker; "+
		"0: no limit")
	s.String(&c.EmbeddedWorker, "embedded-worker", EmbeddedAuto, "Whether a process with all services executes "+
		"commands itself: on, off, or auto: unless auth is required, or the only root would be the home")
	s.String(&c.WorkerNetwork, "worker-network", string(confine.NetworkOutside),
		"Network that commands reach: none, outside (all but this host) or all")
	s.Strings(&c.WorkerReadable, "worker-readable", nil, "Files and directories that commands may read, beside the "+
		"system's programs, toolchains and worker-roots")
	s.Strings(&c.WorkerHidden, "worker-hidden", nil, "Files and directories inside of worker-roots and "+
		"worker-readable that do not exist for commands; the data directory is always among them")
	s.Bool(&c.WorkerUnconfined, "worker-unconfined", false, "Execute commands with all rights of this process; they "+
		"can read its keys and become admin")
	return s
}

// defaultDataDir returns ~/.quartet, or .quartet in the working directory if there is no home
// directory.
func defaultDataDir() string {
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, ".quartet")
	}
	return ".quartet"
}

// Complete checks the settings and sets those that are derived from others. It can be
// called again.
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
			return fmt.Errorf("no service is called %q; the services are %s", name, strings.Join(Services, ", "))
		}
	}
	if c.NATSURL == "" && len(c.Serve) != len(Services) {
		return errors.New("a process with some services only needs a NATS server that all processes share: give " +
			"nats-url")
	}
	if err := c.checkPartitions(); err != nil {
		return err
	}
	if err := errors.Join(c.completeAuth(), c.completeMetricsAuth(), c.completeSignIn(), c.TLS.Check(),
		c.remote().Check(), varz.CheckURLs(c.NATSMonitorURL)); err != nil {
		return err
	}
	if c.MaxConnections < 0 || c.MaxConnections == 1 {
		return fmt.Errorf("max-connections is %d; it must be at least 2, or 0 for %d", c.MaxConnections,
			connlimit.DefaultTotal)
	}
	if err := c.completeSizes(); err != nil {
		return err
	}
	if c.bucket, err = c.Archive.Open(); err != nil {
		return err
	}
	if c.ScrubRate < 0 {
		return fmt.Errorf("scrub-rate is %d; it must be at least 1 MiB per second, or 0 for none", c.ScrubRate)
	}
	if c.MaxChildren < 0 {
		return fmt.Errorf("max-children is %d; it must be at least 1, or 0 for %d", c.MaxChildren,
			agent.DefaultMaxChildren)
	}
	// A worker sends a heartbeat every 10 s.
	if c.CommandLease != 0 && (c.CommandLease < 15*time.Second || c.CommandLease > 24*time.Hour) {
		return fmt.Errorf("command-lease is %s; it must be 15s to 24h", c.CommandLease)
	}
	if err := c.checkConfinement(); err != nil {
		return err
	}
	if c.WorkerMemory < 0 || c.WorkerProcesses < 0 {
		return fmt.Errorf("worker-max-memory-mib is %d, worker-max-processes %d; they must be at least 1, or 0 for "+
			"no limit", c.WorkerMemory, c.WorkerProcesses)
	}
	if c.KeyFile == "" {
		c.KeyFile = filepath.Join(c.DataDir, "key")
	}
	if len(c.WorkerRoots) == 0 {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("worker-roots: %w", err)
		}
		c.WorkerRoots, c.rootIsHome = []string{wd}, sandboxes.HasHome(wd)
	}
	return nil
}

// remote returns how to connect to the servers of nats-url. Its Prefix is that of the nats-tls-… settings in errors.
func (c *Config) remote() natsd.Remote {
	r := c.NATS
	r.URL, r.TLS.Prefix = c.NATSURL, "nats-"
	return r
}

// connections returns the limits of the connections of each of grpc-addr and http-addr.
func (c *Config) connections() connlimit.Limits { return connlimit.Limits{Total: c.MaxConnections} }

// servedWith returns the service whose setting says which processes serve the named service. That
// is the service itself, except for those without a setting of their own.
func servedWith(name string) string {
	switch name {
	case "backup":
		return "work"
	case "audit":
		return "identity"
	}
	return name
}

// serves reports whether this process serves the named service. Processes that serve work also serve
// backup, because they have the agents' homes, and processes that serve identity also serve audit.
func (c *Config) serves(name string) bool {
	name = servedWith(name)
	return slices.Contains(c.Serve, name)
}

// completeSizes checks the sizes and times that bound what is stored, and sets the defaults of sizes that are 0.
func (c *Config) completeSizes() error {
	if c.SegmentSize < 0 || c.SegmentSize > 4096 {
		return fmt.Errorf("segment-mib is %d; it must be from 1 to 4096, or 0 for 64", c.SegmentSize)
	}
	c.SegmentSize = cmp.Or(c.SegmentSize, 64)
	if c.EraseAfter != 0 && (c.EraseAfter < time.Second || c.EraseAfter > 365*24*time.Hour) {
		return fmt.Errorf("erase-after is %s; it must be from 1s to 8760h, or 0 for never", c.EraseAfter)
	}
	if c.SnapshotSize < 0 || c.SnapshotSize > 4096 {
		return fmt.Errorf("snapshot-mib is %d; it must be from 1 to 4096, or 0 for 16", c.SnapshotSize)
	}
	c.SnapshotSize = cmp.Or(c.SnapshotSize, 16)
	if c.EventsSize < 0 || c.EventsSize > 1<<20 {
		return fmt.Errorf("events-mib is %d; it must be from 1 to 1048576, or 0 for %d", c.EventsSize,
			bus.DefaultBytes>>20)
	}
	c.EventsSize = cmp.Or(c.EventsSize, bus.DefaultBytes>>20)
	if c.OutputDays < 0 || c.OutputDays > 3650 {
		return fmt.Errorf("output-days is %d; it must be from 1 to 3650, or 0 to keep the output of commands always",
			c.OutputDays)
	}
	_, err := archives.ParseHistory(c.HistoryDays, c.NamespaceHistoryDays, c.Day)
	return err
}

// keepOutput returns for how long the output of commands is kept; 0: always.
func (c *Config) keepOutput() time.Duration { return time.Duration(c.OutputDays) * 24 * time.Hour }
