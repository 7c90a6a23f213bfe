package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/terminal"
)

// Clocks that differ by skewNoted or more are a warning, and by skewBad or more a problem: webhook
// signatures are valid for five minutes, and tokens of identity providers often as long.
const (
	skewNoted = 2 * time.Second
	skewBad   = 60 * time.Second
)

// Client has the connection by which the server is checked from outside, and what is compared with the server.
type Client struct {
	Address string
	Conn    grpc.ClientConnInterface
	TLS     bool             // Conn uses TLS
	Token   bool             // Conn has a credential
	Version string           // of this program
	Now     func() time.Time // this machine's clock
}

// client checks the server from outside, and reports whether one answered. If none did, the
// checks that need it are skipped.
func (r *report) client(ctx context.Context, c Client) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTerm)
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(c.Conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		r.unreachable(c, err)
		for _, check := range []string{
			"ready", "credential", "clock", "version", "planes", "store", "segments",
			"removal", "events", "journals",
		} {
			r.skip(check, "there is no server to ask")
		}
		return false
	}
	r.ok("connection", "a server answers at %s", c.Address)
	if health.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
		r.ok("ready", "the server is ready")
	} else {
		r.add("ready", Problem, "GET /readyz of its http-addr says what is missing; its log says why",
			"the server at %s is up and not ready", c.Address)
	}
	began := c.Now()
	me, err := identityv1.NewIdentityServiceClient(c.Conn).WhoAmI(ctx, &identityv1.WhoAmIRequest{})
	took := c.Now().Sub(began)
	switch e := fault.From(err); {
	case err == nil:
		role := strings.ToLower(strings.TrimPrefix(me.GetRole().String(), "ROLE_"))
		r.ok("credential", "you are %s, %s of namespace %s", me.GetPrincipal(), role, me.GetNamespace())
	case errors.Is(err, fault.Unauthenticated) && !c.Token:
		r.add("credential", Problem, "give a key with --token, $QUARTET_TOKEN or $QUARTET_TOKEN_FILE; on the "+
			"server's machine `quartet key create NAME --role admin --bootstrap` makes the first one. A server of "+
			"`quartet dev` is used by the user who started it", "the server asks for a credential, and none was "+
			"given: %s", e.Message())
	case errors.Is(err, fault.Unauthenticated):
		r.add("credential", Problem, "ask an admin for another key; `quartet key list --all` shows those there are",
			"the credential is refused: %s", e.Message())
	default:
		r.add("credential", Problem, "the identity service must run in some process: `quartet serve identity …`, "+
			"named in addresses of the others", "who you are cannot be asked: %s", e.Error())
	}
	if err != nil {
		r.skip("clock", "the server tells its time to those it knows")
		r.skip("version", "the server tells its version to those it knows")
		for _, check := range []string{"planes", "store", "segments", "removal", "events", "journals"} {
			r.skip(check, "the server tells what is wrong to admins")
		}
		return true
	}
	// The server read its clock at some time during the call, so only a difference beyond that is certain.
	early, late := me.GetServerTime().AsTime().Sub(began.Add(took)), me.GetServerTime().AsTime().Sub(began)
	skew := time.Duration(0)
	if early > 0 {
		skew = early
	} else if late < 0 {
		skew = late
	}
	const mend = "synchronize both clocks (chrony, systemd-timesyncd): expiries, timers and signatures of webhooks " +
		"are counted by them"
	switch {
	case skew.Abs() >= skewBad:
		r.add("clock", Problem, mend, "the server's clock is %s off this machine's", skew.Round(time.Second))
	case skew.Abs() >= skewNoted:
		r.add("clock", Warning, mend, "the server's clock is %s off this machine's", skew.Round(time.Millisecond))
	default:
		r.ok("clock", "the server's clock agrees with this machine's")
	}
	if me.GetServerVersion() != c.Version {
		r.add("version", Warning, "use the same release on both sides", "the server is %s and this program %s",
			me.GetServerVersion(), c.Version)
	} else {
		r.ok("version", "server and program are %s", c.Version)
	}
	r.journals(ctx, c)
	return true
}

// journals reports the journals that processes of the installation know to be damaged. By the same response it also
// makes the checks planes, store, segments, removal and events.
func (r *report) journals(ctx context.Context, c Client) {
	all, err := identityv1.NewIdentityServiceClient(c.Conn).ListProcesses(ctx, &identityv1.ListProcessesRequest{
		Examine: true,
	})
	if err != nil {
		r.skip("journals", "what is damaged is told to admins: %s", fault.From(err).Message())
		r.skip("planes", "who serves what is told to admins")
		r.skip("store", "how full it is is told to admins")
		r.skip("segments", "what journals take is told to admins")
		r.skip("removal", "what could not be removed is told to admins")
		r.skip("events", "how far EVENTS is behind is told to admins")
		return
	}
	r.planes(all)
	r.store(all)
	r.segments(all)
	r.removal(all)
	r.events(all)
	found := map[string]bool{}
	for _, p := range all.GetProcesses() {
		for _, text := range p.GetDamage() {
			if !found[text] {
				found[text] = true
				r.add("journals", Problem, framelog.DamageRemedy(text), "%s", text)
			}
		}
	}
	if len(found) == 0 {
		r.ok("journals", "no process of the installation knows of damage")
	}
}

// planes reports the services of the installation that no process serves, and processes that do not answer.
func (r *report) planes(all *identityv1.ListProcessesResponse) {
	known := map[string]bool{}
	for _, p := range all.GetProcesses() {
		for _, text := range p.GetDamage() {
			known[text] = true // the check journals reports it
		}
		text, _, _ := strings.Cut(p.GetWarning(), ". ")
		known[text] = true // the check store reports it
		for _, text := range p.GetRemovalFailures() {
			known[text] = true // the check removal reports it
		}
	}
	found := 0
	for _, p := range all.GetProblems() {
		if known[p.GetText()] {
			continue
		}
		found++
		status := Warning
		if p.GetDown() {
			status = Problem
		}
		r.add("planes", status, p.GetRemedy(), "%s", p.GetText())
	}
	switch {
	case len(all.GetPlanes()) == 0:
		r.skip("planes", "the server is older than this program and does not tell who serves what")
	case found == 0:
		r.ok("planes", "all %d services of the installation are served, by %s", len(all.GetPlanes()),
			terminal.Count(len(all.GetProcesses()), "process", "processes"))
	}
}

// The percentages of the store in use from which the check store reports a warning and a problem.
const (
	storeNoted = 70
	storeBad   = 85
)

// store reports how full the store of the journals is.
func (r *report) store(all *identityv1.ListProcessesResponse) {
	used, limit := all.GetStoreUsedBytes(), all.GetStoreLimitBytes()
	if limit <= 0 {
		r.skip("store", "%d MiB are in use; how much there is, the NATS servers do not tell: give the account a "+
			"limit max_file", used>>20)
		return
	}
	const mend = "make room on the disk, or raise max-store-mib (with nats-url: max_file_store of the servers and " +
		"max_file of the account). When it is full, new records are refused with STORAGE_FULL"
	full := all.GetStoreFullIn().AsDuration()
	switch percent := used * 100 / limit; {
	case percent >= storeBad:
		r.add("store", Problem, mend, "%d of %d MiB of the store of the journals are in use, %d %%", used>>20,
			limit>>20, percent)
	case percent >= storeNoted:
		r.add("store", Warning, mend, "%d of %d MiB of the store of the journals are in use, %d %%", used>>20,
			limit>>20, percent)
	case full > 0 && full < storeSoon:
		r.add("store", Warning, mend, "the store of the journals will be full in %s at the rate of the last hours: "+
			"%d of %d MiB are in use, %d %%", terminal.Count(full/time.Hour, "hour", "hours"), used>>20, limit>>20,
			percent)
	default:
		r.ok("store", "%d of %d MiB of the store of the journals are in use, %d %%", used>>20, limit>>20, percent)
	}
}

// storeSoon is the time within which a store must be going to be full to be reported.
const storeSoon = 3 * 24 * time.Hour

// segments reports how many segments the journals have, and their size. It finds no problems; the check planes
// reports those that the server finds.
func (r *report) segments(all *identityv1.ListProcessesResponse) {
	if len(all.GetJournals()) == 0 {
		r.skip("segments", "the server does not tell what its journals take; it is older than this program, or its "+
			"NATS servers do not answer")
		return
	}
	var segments, archived int32
	var bytes, stored int64
	for _, u := range all.GetJournals() {
		segments, bytes = segments+u.GetSegments(), bytes+u.GetBytes()
		archived, stored = archived+u.GetArchivedSegments(), stored+u.GetArchivedBytes()
	}
	r.ok("segments", "%s %s with %.1f MiB, and %d archived with %.1f MiB", terminal.Count(len(all.GetJournals()),
		"journal has", "journals have"), terminal.Count(segments, "segment", "segments"), float64(bytes)/(1<<20),
		archived, float64(stored)/(1<<20))
}

// removal reports old history and data of deleted agents that should have been removed and are still stored.
func (r *report) removal(all *identityv1.ListProcessesResponse) {
	remedies, found := map[string]string{}, false
	for _, p := range all.GetProblems() {
		remedies[p.GetText()] = p.GetRemedy()
	}
	for _, p := range all.GetProcesses() {
		for _, text := range p.GetRemovalFailures() {
			found = true
			r.add("removal", Warning, remedies[text], "%s", text)
		}
	}
	if !found {
		r.ok("removal", "no process of the installation failed to remove old history or deleted agents")
	}
}

// eventsNoted is how long an event may wait for its copy in EVENTS before it is reported.
const eventsNoted = 30 * time.Second

// events reports the partitions whose journals are far ahead of EVENTS.
func (r *report) events(all *identityv1.ListProcessesResponse) {
	most, found := time.Duration(0), false
	for _, l := range all.GetPublishers() {
		behind := l.GetBehind().AsDuration()
		most = max(most, behind)
		if behind >= eventsNoted {
			found = true
			r.add("events", Warning, "see the log of the process that holds the partition (`quartet status` says "+
				"which) for interruptions of the bus, and whether the store has room; nothing is lost, as the "+
				"journal has all",
				"EVENTS is %s and %s behind the journal of %s/%d", behind.Round(time.Second),
				terminal.Count(l.GetFrames(), "frame", "frames"), l.GetPlane(), l.GetPartition())
		}
	}
	switch {
	case len(all.GetPublishers()) == 0:
		r.skip("events", "events are not copied to EVENTS, or the server is older than this program")
	case !found:
		r.ok("events", "EVENTS is %s behind the journals at most", most.Round(time.Millisecond))
	}
}

// unreachable reports that no server answered, and the probable reason according to the error of the call.
func (r *report) unreachable(c Client, err error) {
	e := fault.From(err)
	text := e.Message()
	switch {
	case errors.Is(err, fault.Unauthenticated):
		r.add("connection", Problem, "do what the message says, or give a key with --token or $QUARTET_TOKEN", "%s",
			text)
	case strings.Contains(text, "certificate") || strings.Contains(text, "x509"):
		r.add("connection", Problem, "give who signed the server's certificate with --tls-ca-file, connect by a name "+
			"that stands in it, or renew it", "the server at %s shows a certificate that is not accepted: %s",
			c.Address, text)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		r.add("connection", Problem, "leave --tls out, or give the server tls-cert-file and tls-key-file",
			"the server at %s speaks plain text and you speak TLS", c.Address)
	case !c.TLS && (strings.Contains(text, "error reading server preface") || strings.Contains(text, "EOF") ||
		strings.Contains(text, "reset")):
		r.add("connection", Problem, "connect with --tls, if it is a server with TLS; or correct --address",
			"what listens at %s does not speak gRPC in plain text", c.Address)
	case strings.Contains(text, "refused"):
		r.add("connection", Problem, "start a server (`quartet dev`), or give its address with --address or "+
			"$QUARTET_ADDRESS", "nothing listens at %s", c.Address)
	case strings.Contains(text, "no such host") || strings.Contains(text, "produced zero addresses"):
		r.add("connection", Problem, "correct --address or $QUARTET_ADDRESS", "the name in %s is not known", c.Address)
	case e.Code() == codes.DeadlineExceeded:
		r.add("connection", Problem, "see whether a firewall is between, and whether the server's machine is up",
			"%s does not answer within %s", c.Address, checkTerm)
	default:
		r.add("connection", Problem, "correct --address, or see the server's log", "%s cannot be reached: %s",
			c.Address, text)
	}
}
