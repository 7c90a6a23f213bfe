package audit

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/admission"
	"quartet/pkg/clock"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/life"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// recordTerm bounds how long one append of entries may take.
	recordTerm = 10 * time.Second
	// callsASecond and callsAtOnce are the rate and the burst of recorded calls that each process accepts
	// of a namespace. They bound the growth of the audit log, from which nothing is removed.
	callsASecond, callsAtOnce = 20, 1000
	// sourcesKept is how many sources of refused logins are counted separately. sourcesRecorded is
	// how many of them get an entry of their own, those with the most refusals; the others share
	// one entry, whose source is otherSources.
	sourcesKept, sourcesRecorded = 4096, 100
	otherSources                 = "other"
)

// RecorderConfig holds the dependencies of a Recorder.
type RecorderConfig struct {
	Client auditv1.AuditServiceClient
	NewID  func(prefix string) string
	Clock  clock.Clock
	Logger *zap.Logger
}

// Recorder records the calls that this process serves, and the credentials that it refuses. It is a
// life.Service.
type Recorder struct {
	cfg   RecorderConfig
	calls *admission.Rates[string] // by namespace

	mu      sync.Mutex
	refused map[refusal]int64           // counts of refused logins that are not in pending
	pending *auditv1.RecordAuditRequest // appends refused logins, and was not acknowledged yet; nil without

	stop    context.CancelFunc
	running sync.WaitGroup
}

// stopTerm bounds how long Stop may take to record the refused logins that are not recorded yet.
const stopTerm = 2 * time.Second

// refusal identifies the refused logins that are counted together: those of one source in one minute.
type refusal struct {
	minute int64 // since 1970
	source string
}

// NewRecorder returns a Recorder. It counts refused logins, and records calls, also before Start.
func NewRecorder(cfg RecorderConfig) *Recorder {
	cfg.Clock = cmp.Or(cfg.Clock, clock.System())
	if cfg.NewID == nil {
		cfg.NewID = id.New().New
	}
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	return &Recorder{
		cfg: cfg, calls: admission.NewRates[string](callsASecond, callsAtOnce),
		refused: map[refusal]int64{},
	}
}

// Name returns the module's name.
func (r *Recorder) Name() string { return "audit-recorder" }

// Start begins to record refused logins, once a minute.
func (r *Recorder) Start(ctx context.Context) error {
	flushing, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	r.running.Go(func() { life.Every(flushing, time.Minute, r.flush) })
	return nil
}

// Stop ends the recording of refused logins, after it recorded those that were not recorded yet. It is idempotent.
func (r *Recorder) Stop(ctx context.Context) error {
	if r.stop == nil {
		return nil
	}
	r.stop()
	r.running.Wait()
	ctx, cancel := context.WithTimeout(ctx, stopTerm)
	defer cancel()
	r.flush(ctx) // what was not acknowledged
	r.flush(ctx) // what was counted since
	return nil
}

// Ready returns nil: a Recorder is always ready.
func (r *Recorder) Ready() error { return nil }

// Unary wraps the handler of every unary call (see rpc.Admission). For a call that is recorded it appends
// one entry before the call is executed and one with its outcome. If the first cannot be appended, the
// call is not executed and returns NOT_READY.
func (r *Recorder) Unary(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error) {
	actor := rpc.ActorFrom(ctx)
	if !records(method, actor, req) || rpc.WasRecorded(ctx) {
		return handle(ctx, req)
	}
	entry, err := r.attempt(ctx, method, req)
	if err != nil {
		return nil, err
	}
	resp, err := handle(rpc.WithRecorded(ctx), req)
	r.outcome(ctx, entry, resp, err)
	return resp, err
}

// Stream records a streaming call before it is executed, and returns a function that the caller must
// call with the error of the call, or nil. If Stream returns an error, the call must not be executed.
func (r *Recorder) Stream(ctx context.Context, method string, req proto.Message) (ended func(err error), err error) {
	if !records(method, rpc.ActorFrom(ctx), req) || rpc.WasRecorded(ctx) {
		return func(error) {}, nil
	}
	entry, err := r.attempt(ctx, method, req)
	return func(err error) { r.outcome(ctx, entry, nil, err) }, err
}

// attempt records that a call is about to be executed, and returns the entry. It returns
// RATE_LIMITED if the namespace makes too many such calls, and NOT_READY if the entry cannot be appended.
func (r *Recorder) attempt(ctx context.Context, method string, req any) (*auditv1.AuditEntry, error) {
	actor := rpc.ActorFrom(ctx)
	if wait := r.calls.Take(actor.Namespace, 1); wait > 0 {
		return nil, fault.RateLimited.Newf("namespace %s makes more calls that are recorded in the audit log than %d "+
			"per second; repeat the call later", actor.Namespace, callsASecond).
			With("namespace", actor.Namespace).WithRetryAfter(wait)
	}
	e := &auditv1.AuditEntry{
		Kind: auditv1.AuditKind_AUDIT_KIND_ATTEMPT, Method: strings.TrimPrefix(method, "/"), Namespace: actor.Namespace,
		Principal: actor.Principal,
		Role:      actor.Role, KeyId: actor.KeyID, Source: rpc.SourceFrom(ctx), TargetNamespace: actor.Namespace,
	}
	var namespace string
	if m, ok := req.(proto.Message); ok {
		e.Target, namespace = targetOf(m.ProtoReflect())
	}
	if acrossNamespaces[method] && actor.Role == rpc.RoleInstallationAdmin {
		e.TargetNamespace = namespace // only admins of this namespace and of the installation see the entry
	}
	if m, ok := req.(interface{ GetRequestId() string }); ok {
		e.RequestId = strings.ToValidUTF8(cut(m.GetRequestId()), "\uFFFD")
	}
	number, err := r.record(ctx, e)
	if err != nil {
		return nil, fault.NotReady.New("the audit log cannot be written, so the call was not executed; repeat it in " +
			"a moment").WithCause(err).WithRetryAfter(time.Second)
	}
	e.Number = number
	return e, nil
}

// outcome records how a call ended. If that fails it logs a warning, and the call does not fail.
func (r *Recorder) outcome(ctx context.Context, attempt *auditv1.AuditEntry, resp any, err error) {
	e := proto.CloneOf(attempt)
	e.Kind, e.Attempt, e.Code, e.Number = auditv1.AuditKind_AUDIT_KIND_OUTCOME, attempt.GetNumber(), codes.OK.String(),
		0
	if f := fault.From(err); err != nil {
		e.Code, e.Reason = f.Code().String(), string(f.Reason())
	}
	if m, ok := resp.(proto.Message); ok && err == nil {
		addKey(e, m)
	}
	if _, err := r.record(ctx, e); err != nil {
		r.cfg.Logger.Warn("audit: the outcome of a call is not recorded", zap.Int64("attempt", attempt.GetNumber()),
			zap.String("code", e.GetCode()), zap.Error(err))
	}
}

// addKey adds the key in a response to the target of an entry, because a request to create a key does not
// have its id. It sets the target's namespace to that of the key.
func addKey(e *auditv1.AuditEntry, resp proto.Message) {
	fd := resp.ProtoReflect().Descriptor().Fields().ByName("key")
	if fd == nil || fd.Message() == nil || !resp.ProtoReflect().Has(fd) {
		return
	}
	key, namespace := targetOf(resp.ProtoReflect().Get(fd).Message())
	if e.Target == nil {
		e.Target = map[string]string{}
	}
	maps.Copy(e.Target, key)
	e.TargetNamespace = cmp.Or(namespace, e.GetTargetNamespace())
}

// record appends an entry of a call and returns its number. It takes at most recordTerm, and goes on even if the
// call is cancelled.
func (r *Recorder) record(ctx context.Context, e *auditv1.AuditEntry) (int64, error) {
	return r.append(context.WithoutCancel(ctx), &auditv1.RecordAuditRequest{Entries: []*auditv1.AuditEntry{e}})
}

// append appends the entries of a request and returns the number of the first.
func (r *Recorder) append(ctx context.Context, req *auditv1.RecordAuditRequest) (int64, error) {
	ctx, cancel := context.WithTimeout(rpc.WithActor(ctx, plane.ActorOf(*plane.System(rpc.DefaultNamespace))),
		recordTerm)
	defer cancel()
	resp, err := r.cfg.Client.RecordAudit(ctx, req)
	return resp.GetFirstNumber(), err
}

// Refused counts a credential that was refused. It does no I/O: the counts are recorded once a minute.
func (r *Recorder) Refused(ctx context.Context) {
	source := ""
	if from := connlimit.SourceOf(ctx); from.IsValid() {
		source = from.String()
	}
	r.count(source)
}

// count counts a refused credential of a source.
func (r *Recorder) count(source string) {
	at := refusal{r.cfg.Clock.Now().Unix() / 60, source}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.refused[at]; !known && len(r.refused) >= sourcesKept {
		at.source = otherSources
	}
	r.refused[at]++
}

// flush records the refused logins that were counted and are not recorded yet, with one append. If that fails, the next
// flush repeats the same request, because the entries may have been appended; what is counted meanwhile is recorded
// after it.
func (r *Recorder) flush(ctx context.Context) {
	req := r.unrecorded()
	if req == nil {
		return
	}
	if _, err := r.append(ctx, req); err != nil {
		r.cfg.Logger.Warn("audit: refused logins are not recorded yet", zap.Error(err))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == req {
		r.pending = nil
	}
}

// unrecorded returns the request in pending, which it makes of the counted refused logins if there is none. It returns
// nil if nothing is to be recorded.
func (r *Recorder) unrecorded() *auditv1.RecordAuditRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil && len(r.refused) > 0 {
		r.pending = &auditv1.RecordAuditRequest{Entries: refusals(r.refused), RequestId: r.cfg.NewID("req_")}
		r.refused = map[refusal]int64{}
	}
	return r.pending
}

// refusals returns the entries for refused logins: one for each of the sourcesRecorded largest counts, and one
// for all others together, which has the earliest of their minutes.
func refusals(counted map[refusal]int64) []*auditv1.AuditEntry {
	var most []refusal
	for at := range counted {
		most = append(most, at)
	}
	slices.SortFunc(most, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(counted[b], counted[a]), cmp.Compare(a.minute, b.minute),
			cmp.Compare(a.source, b.source))
	})
	var entries []*auditv1.AuditEntry
	add := func(at refusal, count int64) {
		entries = append(entries, &auditv1.AuditEntry{
			Kind: auditv1.AuditKind_AUDIT_KIND_REFUSED_LOGINS, Source: at.source, Count: count,
			Minute: &timestamppb.Timestamp{Seconds: at.minute * 60}, Code: codes.Unauthenticated.String(),
		})
	}
	rest := refusal{source: otherSources}
	var sum int64
	for i, at := range most {
		if i < sourcesRecorded {
			add(at, counted[at])
			continue
		}
		if sum == 0 || at.minute < rest.minute {
			rest.minute = at.minute
		}
		sum += counted[at]
	}
	if sum > 0 {
		add(rest, sum)
	}
	return entries
}
