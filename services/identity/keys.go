package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/life"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

const (
	// useGrain is the resolution of last_used_at. A key in constant use takes six journal
	// lines an hour.
	useGrain = 10 * time.Minute
	// catchUpTerm is how long the check of an unknown secret may wait for the journal,
	// catchUpQueue how many checks may wait at once, and catchUpShare how many of them of one
	// source, which bounds what callers who guess secrets can occupy.
	catchUpTerm  = 2 * time.Second
	catchUpQueue = 1024
	catchUpShare = 64
)

// KeysConfig holds the dependencies of Keys.
type KeysConfig struct {
	// Sources returns the journal of this plane.
	Sources func(plane string) ([]journal.Source, error)
	// Report reports uses to the identity plane; nil: uses are not reported.
	Report func(ctx context.Context, uses []*identityv1.KeyUse) error
	// Damage returns what is known to be wrong with the journal, nil if nothing is; a nil function: nothing ever is.
	Damage func() error
	Clock  clock.Clock
	Logger *zap.Logger
}

// Keys checks API keys. Every process has one, which knows all keys: Start reads the journal
// to its end, and from then on Keys follows it. It is a life.Service.
type Keys struct {
	cfg KeysConfig

	mu    sync.RWMutex
	known map[string]*credential // by id, also those that have ended
	ready bool                   // Start has read the journal to its end

	sources  []journal.Source
	journal  *follower.Set
	catchUps chan struct{}      // holds a value while a caller of await reads the end of the journal
	awaiting sync.Mutex         // guards the next two
	waiting  map[netip.Addr]int // callers in await, by source
	waiters  int                // the sum of waiting
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// credential is what is needed to check a key.
type credential struct {
	id       string
	hash     [sha256.Size]byte
	actor    rpc.Actor
	expires  time.Time     // zero: never
	ended    chan struct{} // closed when the key is revoked
	used     atomic.Int64  // Unix time of the last use, in units of useGrain
	reported int64         // the value of used that was reported last; only reportUses uses it
}

// NewKeys returns Keys that has not started.
func NewKeys(cfg KeysConfig) *Keys {
	cfg.Clock = cmp.Or(cfg.Clock, clock.System())
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	k := &Keys{
		cfg: cfg, known: map[string]*credential{}, catchUps: make(chan struct{}, 1),
		waiting: map[netip.Addr]int{},
	}
	k.journal = follower.NewSet(cfg.Logger.Named("keys"), func(_ journal.Source, lines []journal.Line) {
		for _, line := range lines {
			k.apply(line)
		}
	})
	return k
}

// Name implements life.Service.
func (k *Keys) Name() string { return "keys" }

// Start reads the journal up to its current end, and begins to follow it. If the journal is damaged, keys are refused
// and the process serves other credentials.
func (k *Keys) Start(ctx context.Context) error {
	var err error
	if k.sources, err = k.cfg.Sources(Plane); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	k.journal.Add(k.sources...)
	var broken *framelog.Broken
	if err := k.journal.CatchUp(ctx, k.sources...); err != nil && !errors.As(err, &broken) {
		return errors.Join(fmt.Errorf("keys: the journal cannot be read: %w", err), k.Stop(ctx))
	}
	k.mu.Lock()
	k.ready = true
	k.mu.Unlock()
	if k.cfg.Report != nil {
		report, stop := context.WithCancel(context.WithoutCancel(ctx))
		k.stop = stop
		k.running.Go(func() { life.Every(report, reportEvery, k.reportUses) })
	}
	return nil
}

// Stop stops following. It is idempotent.
func (k *Keys) Stop(context.Context) error {
	if k.stop != nil {
		k.stop()
	}
	k.running.Wait()
	k.journal.Close()
	return nil
}

// Ready returns nil once all keys that existed at the start are known.
func (k *Keys) Ready() error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if !k.ready {
		return errors.New("keys: not read yet")
	}
	return nil
}

// revokedType is the event type of identityv1.KeyRevoked.
const revokedType = "key_revoked"

// apply applies one line of the journal. It logs an event that cannot be read and fails closed:
// a key whose creation is lost authenticates nobody, and a revocation ends every key whose id
// the line contains.
func (k *Keys) apply(line journal.Line) {
	eventType, _ := line.Type()
	if journal.Internal(eventType) {
		return
	}
	ev, err := line.Read(registry)
	if err != nil {
		k.cfg.Logger.Error("keys: an event cannot be read", zap.String("type", eventType), zap.Error(err))
		if bytes.Contains(line.Text, []byte(`"`+revokedType+`"`)) {
			k.endNamed(line.Text)
		}
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if row, err := eventRows.Of(ev); err == nil && row.admit != nil {
		row.admit(k, ev)
	}
}

// addKey adds a key. The caller holds the lock.
func (k *Keys) addKey(p *identityv1.KeyCreated) {
	key := p.GetKey()
	if k.known[key.GetKeyId()] != nil {
		return // the line was read before
	}
	c := &credential{id: key.GetKeyId(), actor: actorOf(key), ended: make(chan struct{})}
	if n, err := hex.Decode(c.hash[:], []byte(p.GetSecretHash())); err != nil || n != len(c.hash) {
		k.cfg.Logger.Error("keys: a key has no hash and lets nobody in", zap.String("key_id", c.id))
		return
	}
	if key.GetExpiresAt() != nil {
		c.expires = key.GetExpiresAt().AsTime()
	}
	k.known[c.id] = c
}

// endKey ends a key that was revoked. The caller holds the lock.
func (k *Keys) endKey(p *identityv1.KeyRevoked) {
	c := k.known[p.GetKey().GetKeyId()]
	if c != nil && !c.revoked() {
		close(c.ended)
	}
}

// endNamed ends the keys whose ids a damaged revocation contains.
func (k *Keys) endNamed(text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := false
	for id, c := range k.known {
		if !bytes.Contains(text, []byte(`"`+id+`"`)) {
			continue
		}
		found = true
		if !c.revoked() {
			close(c.ended)
		}
		k.cfg.Logger.Warn("keys: a damaged revocation names the key, which is not valid any more",
			zap.String("key_id", id))
	}
	if !found {
		k.cfg.Logger.Error("keys: a damaged revocation names no key; revoke the key that it was about again")
	}
}

// revoked reports whether the key was revoked. That a key has expired makes no difference.
func (c *credential) revoked() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// actorOf returns the actor that a key authenticates.
func actorOf(key *identityv1.Key) rpc.Actor {
	a := rpc.Actor{
		Namespace: key.GetNamespace(), Principal: key.GetName(), Role: roleNames[key.GetRole()],
		KeyID: key.GetKeyId(), Agents: rpc.NamesOf(key.GetAgentIds()), Tools: rpc.NamesOf(key.GetTools()),
	}
	if a.Role == rpc.RoleAgent {
		// As the credentials of its runs, so that a request id means the same by
		// either way (SPEC X2).
		a.AgentID, a.Principal = key.GetAgentId(), "agent/"+key.GetAgentId()
	}
	return a
}

// Authenticate implements rpc.Authenticator: it returns the actor of the API key with this secret, or an error of
// check.
func (k *Keys) Authenticate(ctx context.Context, secret string) (rpc.Actor, error) {
	c, err := k.check(ctx, secret)
	if err != nil {
		return rpc.Actor{}, err
	}
	return c.actor, nil
}

// Hold returns a context that ends, with UNAUTHENTICATED as its cause, when the key is revoked
// or expires, and at once if it is not valid.
func (k *Keys) Hold(ctx context.Context, secret string) (context.Context, context.CancelFunc) {
	c, err := k.check(ctx, secret)
	ctx, cancel := context.WithCancelCause(ctx)
	if err != nil {
		cancel(err)
		return ctx, func() {}
	}
	var expiry <-chan time.Time
	stop := func() {}
	if !c.expires.IsZero() {
		t := k.cfg.Clock.TimerAt(c.expires)
		expiry, stop = t.C(), func() { t.Stop() }
	}
	go func() {
		defer stop()
		select {
		case <-c.ended:
			cancel(revokedError(c))
		case <-expiry:
			cancel(expiredError(c))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// check returns the key of a secret, and records that it was used. It returns UNAUTHENTICATED for a secret that
// is unknown and for a key that has ended, the errors of await, and STORAGE if the journal is damaged, since it may
// have lost a revocation.
func (k *Keys) check(ctx context.Context, secret string) (*credential, error) {
	if k.cfg.Damage != nil {
		if err := k.cfg.Damage(); err != nil {
			return nil, fault.Storage.New("API keys cannot be checked: " + err.Error() +
				". Other credentials are accepted").WithCause(err)
		}
	}
	id, ok := keyOf(secret)
	if !ok {
		return nil, unknownError()
	}
	c := k.find(id)
	if c == nil {
		// Another process may have created it a moment ago.
		if err := k.await(ctx, id); err != nil {
			return nil, err
		}
		if c = k.find(id); c == nil {
			return nil, unknownError()
		}
	}
	if sum := sha256.Sum256([]byte(secret)); subtle.ConstantTimeCompare(sum[:], c.hash[:]) != 1 {
		return nil, unknownError()
	}
	// A caller who has the secret may learn why it is refused.
	now := k.cfg.Clock.Now()
	switch {
	case c.revoked():
		return nil, revokedError(c)
	case !c.expires.IsZero() && !now.Before(c.expires):
		return nil, expiredError(c)
	}
	if grain := now.Unix() / int64(useGrain/time.Second); c.used.Load() < grain {
		c.used.Store(grain)
	}
	return c, nil
}

// unknownError returns UNAUTHENTICATED without a reason, because its caller may be guessing secrets.
func unknownError() error {
	return fault.Unauthenticated.New("the credential is malformed or not of this installation")
}

// revokedError returns the UNAUTHENTICATED error for c, which was revoked.
func revokedError(c *credential) error {
	return fault.Unauthenticated.New("key "+c.id+" was revoked; ask an admin for another one", "key_id", c.id)
}

// expiredError returns the UNAUTHENTICATED error for c, which has expired.
func expiredError(c *credential) error {
	return fault.Unauthenticated.New("key "+c.id+" is past its expiry; ask an admin for another one", "key_id", c.id)
}

// find returns the key with an id, nil if none is known in this process.
func (k *Keys) find(id string) *credential {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.known[id]
}

// Known waits until a key that was just created is known in this process, for at most
// catchUpTerm.
func (k *Keys) Known(ctx context.Context, id string) { _ = k.await(ctx, id) }

// await waits until a key is known, or until everything that the journal contains now has been
// read, after which the caller may refuse the key as unknown. One caller at a time reads the end
// of the journal. It returns NOT_READY if that takes longer than catchUpTerm, and UNAUTHENTICATED
// if catchUpQueue callers wait already, or catchUpShare from the same source.
func (k *Keys) await(ctx context.Context, id string) error {
	from := connlimit.SourceOf(ctx)
	if !k.enqueue(from) {
		return unknownError()
	}
	defer k.dequeue(from)
	ctx, cancel := context.WithTimeout(ctx, catchUpTerm)
	defer cancel()
	select {
	case k.catchUps <- struct{}{}:
		defer func() { <-k.catchUps }()
	case <-ctx.Done():
		return notKnown(ctx.Err())
	}
	if k.find(id) != nil {
		return nil
	}
	if err := k.journal.CatchUp(ctx, k.sources...); err != nil {
		return notKnown(err)
	}
	return nil
}

// enqueue reports whether a check of a source may wait for the journal. If it may, dequeue must be called
// after the wait.
func (k *Keys) enqueue(from netip.Addr) bool {
	k.awaiting.Lock()
	defer k.awaiting.Unlock()
	if k.waiters >= catchUpQueue || k.waiting[from] >= catchUpShare {
		return false
	}
	k.waiters++
	k.waiting[from]++
	return true
}

// dequeue records the end of a wait that enqueue admitted.
func (k *Keys) dequeue(from netip.Addr) {
	k.awaiting.Lock()
	defer k.awaiting.Unlock()
	k.waiters--
	if k.waiting[from]--; k.waiting[from] == 0 {
		delete(k.waiting, from)
	}
}

// notKnown returns NOT_READY for a key that may exist but is not known in this process yet.
func notKnown(err error) error {
	return fault.NotReady.New("the key cannot be checked now, because the journal is not read to its end; repeat the " +
		"call in a moment").WithCause(err)
}

// reportEvery is how often uses are reported.
const reportEvery = 10 * time.Second

// reportUses reports the keys whose last use is later than the one reported before, at most maxUses
// of them. The rest, and all of them after an error, are reported the next time.
func (k *Keys) reportUses(ctx context.Context) {
	var uses []*identityv1.KeyUse
	var reported []*credential
	k.mu.RLock()
	for _, c := range k.known {
		if used := c.used.Load(); used > c.reported && len(uses) < maxUses {
			uses = append(uses, &identityv1.KeyUse{KeyId: c.id, UsedAt: grainTime(used)})
			reported = append(reported, c)
		}
	}
	k.mu.RUnlock()
	if len(uses) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportEvery)
	defer cancel()
	if err := k.cfg.Report(ctx, uses); err != nil {
		k.cfg.Logger.Debug("keys: uses will be reported later", zap.Error(err))
		return
	}
	for i, c := range reported {
		c.reported = uses[i].GetUsedAt().GetSeconds() / int64(useGrain/time.Second)
	}
}
