package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	"quartet/services/storage/datadir"
)

// defaults returns the settings of a server whose flags are all unset.
func defaults(t *testing.T) Config {
	var cfg Config
	cfg.Flags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	cfg.DataDir = t.TempDir()
	return cfg
}

func TestCompleteDerivesSettings(t *testing.T) {
	cfg := defaults(t)
	require.NoError(t, cfg.Complete())
	require.Equal(t, filepath.Join(cfg.DataDir, "home"), cfg.HomeDir)
	require.Equal(t, filepath.Join(cfg.DataDir, "key"), cfg.KeyFile)
	require.Equal(t, Services, cfg.Serve)
	require.NotEmpty(t, cfg.WorkerRoots)
	require.True(t, cfg.serves("backup"), "backups are made by the process that serves work")
	before := cfg
	require.NoError(t, cfg.Complete(), "it can be called again")
	require.Equal(t, before, cfg)
}

func TestCompleteRefusesWhatCannotWork(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"data-dir is empty":                   func(c *Config) { c.DataDir = "" },
		`no service is called "mail"`:         func(c *Config) { c.Serve = []string{"mail"} },
		"give nats-url":                       func(c *Config) { c.Serve = []string{"work"} },
		"max-children is -1":                  func(c *Config) { c.MaxChildren = -1 },
		"worker-max-memory-mib is -1":         func(c *Config) { c.WorkerMemory = -1 },
		`no plane is called "mail"`:           func(c *Config) { c.Partitions = map[string]string{"mail": "2"} },
		"task cannot be split":                func(c *Config) { c.Partitions = map[string]string{"task": "2"} },
		`the number for work is "0"`:          func(c *Config) { c.Partitions = map[string]string{"work": "0"} },
		`the number for waiting is "65"`:      func(c *Config) { c.Partitions = map[string]string{"waiting": "65"} },
		"partition-lease is 1ms":              func(c *Config) { c.PartitionLease = 1e6 },
		`auth is "maybe"`:                     func(c *Config) { c.Auth = "maybe" },
		"grpc-addr :7481 is reachable":        func(c *Config) { c.Auth, c.GRPCAddr = AuthOff, ":7481" },
		"http-addr 192.0.2.1:80 is reachable": func(c *Config) { c.Auth, c.HTTPAddr = AuthOff, "192.0.2.1:80" },
		"auth is local: grpc-addr :7481":      func(c *Config) { c.Auth, c.GRPCAddr = AuthLocal, ":7481" },
		"auth is off: http-addr :7480":        func(c *Config) { c.Open, c.HTTPAddr = true, ":7480" },
		`open is the same as auth=off`:        func(c *Config) { c.Open, c.Auth = true, AuthRequired },
	} {
		cfg := defaults(t)
		change(&cfg)
		require.ErrorContains(t, cfg.Complete(), want)
	}
}

// SPEC R12.5: with nats-url and no archive a server that is to remove something does not start.
func TestWithoutAnArchiveNothingIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"the defaults": {func(*Config) {}, []string{
			"erase-after 24h0m0s removes events", "give archive, a directory that all processes share",
			"or a bucket, as s3://", "give erase-after 0 and no history-days",
		}},
		"history": {func(c *Config) { c.EraseAfter, c.HistoryDays = 0, 90 }, []string{"with nats-url, history-days"}},
		"of one": {func(c *Config) {
			c.EraseAfter, c.NamespaceHistoryDays = 0, map[string]string{"acme": "90"}
		}, []string{"history-days or namespace-history-days"}},
		"nothing is removed": {func(c *Config) { c.EraseAfter = 0 }, nil},
		"a directory":        {func(c *Config) { c.Archive.URL = "/srv/quartet/archive" }, nil},
		"a bucket":           {func(c *Config) { c.Archive.URL = "s3://b-1?region=x" }, nil},
		"embedded":           {func(c *Config) { c.NATSURL = "" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := defaults(t)
			cfg.NATSURL, cfg.WorkerUnconfined = "nats://127.0.0.1:1", true
			c.change(&cfg)
			require.NoError(t, cfg.Complete(), "commands that start no server")
			err := cfg.checkArchive()
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
				must.Fail(New(cfg, zap.NewNop(), "test"))(t, text)
			}
			if c.says == nil {
				require.NoError(t, err)
			}
		})
	}
}

// SPEC X15: without an explicit setting a credential is demanded exactly where other
// machines can connect.
func TestAuthFollowsTheAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:0": AuthLocal, "localhost:1": AuthLocal, "[::1]:1": AuthLocal,
		":1": AuthRequired, "0.0.0.0:1": AuthRequired, "192.0.2.1:1": AuthRequired,
	} {
		cfg := defaults(t)
		cfg.GRPCAddr = addr
		require.NoError(t, cfg.Complete(), addr)
		require.Equal(t, want, cfg.Auth, addr)
	}
}

// SPEC G4.1: pages of public-url may call a server that other machines reach.
func TestG4_TheOriginOfThePublicURL(t *testing.T) {
	for _, c := range []struct {
		addr, url string
		want      []string
	}{
		{":7480", "https://quartet.example.com", []string{"https://quartet.example.com"}},
		{":7480", "https://quartet.example.com:8443/base?x#y", []string{"https://quartet.example.com:8443"}},
		{"127.0.0.1:7480", "https://quartet.example.com", nil},
		{":7480", "", nil},
		{":7480", "ftp://quartet.example.com", nil},
		{":7480", "quartet.example.com", nil},
		{":7480", "https://", nil},
		{":7480", "https://%", nil},
	} {
		require.Equal(t, c.want, (&Config{HTTPAddr: c.addr, PublicURL: c.url}).allowedOrigins(), "%+v", c)
	}
}

// SPEC X14: the planes that can be split are, in a cluster, and keep the number that is
// set explicitly.
func TestPartitionsOfPlanes(t *testing.T) {
	for _, c := range []struct {
		nats, plane, set string
		want             int
		explicit         bool
	}{
		{"", "work", "", 1, false},
		{"nats://a", "work", "", defaultPartitions, false},
		{"nats://a", "agent", "", 1, false},
		{"nats://a", "waiting", "2", 2, true},
		{"", "work", "64", maxPartitions, true},
	} {
		cfg := Config{NATSURL: c.nats}
		if c.set != "" {
			cfg.Partitions = map[string]string{c.plane: c.set}
		}
		n, explicit, err := cfg.partitions(c.plane)
		require.NoError(t, err)
		require.Equal(t, c.want, n, c)
		require.Equal(t, c.explicit, explicit, c)
	}
}

func TestAdvertisedAddress(t *testing.T) {
	host := must.Value(os.Hostname())(t)
	for _, c := range []struct{ set, bound, want string }{
		{"", "127.0.0.1:7481", "127.0.0.1:7481"},
		{"", "[::]:7481", host + ":7481"},
		{"", "0.0.0.0:7481", host + ":7481"},
		{"work-1:7481", "[::]:1", "work-1:7481"},
	} {
		cfg := Config{AdvertiseAddr: c.set}
		require.Equal(t, c.want, must.Value(cfg.advertisedAddr(c.bound))(t))
	}
	require.Error(t, must.Err((&Config{}).advertisedAddr("nowhere")))
}

func TestDataDirectoryHasOneProcess(t *testing.T) {
	dir := t.TempDir()
	unlock := must.Value(datadir.Lock(dir))(t)
	must.Fail(datadir.Lock(dir))(t, "in use by another process")
	require.NoError(t, unlock())
	unlock = must.Value(datadir.Lock(dir))(t)
	require.NoError(t, unlock())
}

// A split plane has a unit per partition; any other plane has one unit of all its
// partitions.
func TestUnitsOfAHost(t *testing.T) {
	b := &broker{counts: map[string]int{"work": 6, "agent": 1}}
	work, agent := &host{name: "work", broker: b}, &host{name: "agent", broker: b}
	require.Equal(t, 6, work.size())
	require.Equal(t, journal.SingleShare(2, 6), work.share(2))
	require.Equal(t, 1, agent.size())
	require.Equal(t, journal.WholeShare(1), agent.share(0))
	require.NoError(t, work.Ready(), "a host without units is ready")
	require.False(t, work.over(2))
	place, changed := work.where(2)
	require.Zero(t, place)
	require.Nil(t, changed, "nothing is known before Start")
	require.Equal(t, map[string]int{"work": 6}, b.split())
}

// What New started before a later step failed has ended.
func TestNewThatFailsLeavesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	cfg := defaults(t)
	cfg.OTLPEndpoint, cfg.WorkerID, cfg.WorkerUnconfined = "http://127.0.0.1:1", "No Name", true
	must.Fail(New(cfg, nil, "test"))(t, "worker id")
	goleak.VerifyNone(t, before)
}

// stalledPlane is a unit whose journal cannot be written.
type stalledPlane struct {
	planeService
	since time.Duration
}

func (s stalledPlane) Stalled() time.Duration { return s.since }

func TestAHostReportsTheLongestStall(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := newHost(&host{name: "work"}, reg)
	g := newGauges(reg)
	g.journals["work"] = []journaled{h}
	for n, since := range []time.Duration{2 * time.Second, 3 * time.Second, 0} {
		h.units[n] = &unit{service: stalledPlane{since: since}}
	}
	sampled := func() float64 {
		g.sample(t.Context())
		families := must.Value(reg.Gather())(t)
		for _, f := range families {
			if f.GetName() == "quartet_journal_stalled_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	require.InDelta(t, 3, sampled(), 0)
	clear(h.units)
	require.InDelta(t, 0, sampled(), 0)
}

// TestModulesOfAProcess builds the table of modules for processes that serve different
// services. life.NewGroup, which New calls, refuses a need that no module of the process
// fulfils.
func TestModulesOfAProcess(t *testing.T) {
	for name, c := range map[string]struct {
		serve   []string
		nats    string
		publish bool
		want    []string
	}{
		"everything": {
			serve: Services, publish: true,
			want: []string{
				"nats", "fill", "keys", "quota", "memory", "output", "agent", "work", "waiting", "task",
				"board", "identity", "audit", "backup", "scheduler", "worker", "gateway", "rpc", "audit-recorder",
				"publisher", "key-file", "processes", "guard", "scrub", "gauges",
			},
		},
		"one plane of an installation": {
			serve: []string{"work"}, nats: "nats://127.0.0.1:4222", publish: true,
			want: []string{
				"nats", "fill", "keys", "quota", "memory", "work", "backup", "rpc", "audit-recorder",
				"leases", "key-file", "processes", "guard", "gauges",
			},
		},
		"a gateway": {
			serve: []string{"gateway"}, nats: "nats://127.0.0.1:4222", publish: true,
			want: []string{
				"nats", "fill", "keys", "quota", "memory", "gateway", "rpc", "audit-recorder", "key-file",
				"processes", "guard", "gauges",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := defaults(t)
			cfg.Serve, cfg.NATSURL, cfg.Publish, cfg.HTTPAddr, cfg.WorkerUnconfined = c.serve, c.nats, c.publish,
				"127.0.0.1:0", true
			if c.nats != "" {
				cfg.EraseAfter = 0 // there is no archive
			}
			require.NoError(t, cfg.Complete())
			a := &App{cfg: cfg, logger: zap.NewNop()}
			w := must.Value(a.wire("test"))(t)
			table := newTable(w)
			for _, row := range w.services() {
				if cfg.serves(row.name) {
					require.NoError(t, table.add(row), row.name)
				}
			}
			var names []string
			for _, m := range table.complete() {
				names = append(names, m.Service.Name())
			}
			require.Equal(t, c.want, names)
			for _, p := range w.planes() {
				require.Equal(t, cfg.serves(p.name), len(table.gauges.journals[p.name]) == 1, "%s reports its stalls",
					p.name)
			}
			must.Value(New(cfg, nil, "test"))(t)
		})
	}
}
