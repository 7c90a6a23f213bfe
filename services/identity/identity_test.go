package identity

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type rig struct {
	t        testing.TB
	clk      *clock.Fake
	journals *planetest.Journals
	service  *Service
	keys     *Keys
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, clk: clock.NewFake(epoch), journals: planetest.NewJournals()}
	r.keys = NewKeys(KeysConfig{Sources: r.journals.Sources, Clock: r.clk})
	r.service = must.Value(New(Deps{
		Deps:         plane.Deps{Log: r.journals.Log, Sources: r.journals.Sources, Clock: r.clk},
		Installation: keyfile.Fixed(keyfile.Of([]byte("installation"))), Known: func(ctx context.Context, id string) {
			r.keys.Known(ctx, id)
		},
		Processes: func(context.Context, bool) (*identityv1.ListProcessesResponse, error) { return nil, nil },
		Usage:     func(context.Context, string) ([]*identityv1.QuotaUse, error) { return nil, nil },
		Largest:   func(context.Context) ([]*identityv1.NamespaceUse, int, error) { return nil, 0, nil },
	}))(t)
	require.NoError(t, r.service.Start(context.Background()))
	require.NoError(t, r.keys.Start(context.Background()))
	t.Cleanup(func() {
		require.NoError(t, r.keys.Stop(context.Background()))
		require.NoError(t, r.service.Stop(context.Background()))
	})
	return r
}

func (r *rig) admin() context.Context {
	return rpc.WithActor(context.Background(), rpc.Actor{
		Namespace: "default", Principal: "root", Role: rpc.RoleInstallationAdmin,
	})
}

func (r *rig) create(req *identityv1.CreateKeyRequest) *identityv1.CreateKeyResponse {
	return must.Value(r.service.CreateKey(r.admin(), req))(r.t)
}

func (r *rig) enters(secret string) (rpc.Actor, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return r.keys.Authenticate(ctx, secret)
}

// TestX4_TheActorOfAKey is what stands on events.
func TestX4_TheActorOfAKey(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		req  *identityv1.CreateKeyRequest
		want rpc.Actor
	}{
		{
			&identityv1.CreateKeyRequest{Name: "ci", Role: identityv1.Role_ROLE_OPERATOR},
			rpc.Actor{Namespace: "default", Principal: "ci", Role: rpc.RoleOperator},
		},
		{
			&identityv1.CreateKeyRequest{Name: "ci", Role: identityv1.Role_ROLE_WORKER, Namespace: "acme"},
			rpc.Actor{Namespace: "acme", Principal: "ci", Role: rpc.RoleWorker},
		},
		{&identityv1.CreateKeyRequest{
			Name: "k", Role: identityv1.Role_ROLE_AGENT, Namespace: "acme", AgentId: "keeper",
		}, rpc.Actor{Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper"}},
	} {
		created := r.create(c.req)
		c.want.KeyID = created.GetKey().GetKeyId()
		require.Equal(t, c.want, must.Value(r.enters(created.GetSecret()))(t))
	}
}

// TestX15_ASecretIsAllOrNothing: a secret with any change is refused.
func TestX15_ASecretIsAllOrNothing(t *testing.T) {
	r := newRig(t)
	secret := r.create(&identityv1.CreateKeyRequest{Name: "ci", Role: identityv1.Role_ROLE_OPERATOR}).GetSecret()
	must.Value(r.enters(secret))(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := []byte(secret)
		switch rapid.IntRange(0, 2).Draw(rt, "how") {
		case 0:
			at := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
			b[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "by"))
		case 1:
			b = b[:rapid.IntRange(0, len(b)-1).Draw(rt, "cut")]
		case 2:
			b = append(b, rapid.Byte().Draw(rt, "more"))
		}
		must.Refuse(r.enters(string(b)))(rt, fault.Unauthenticated)
	})
}

// TestX9_KeysAreListedInPages and filtered.
func TestX9_KeysAreListedInPages(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 7 {
		ids = append(ids,
			r.create(&identityv1.CreateKeyRequest{
				Name: fmt.Sprintf("k%d", i), Role: identityv1.Role_ROLE_RUNNER, Namespace: []string{"a", "b"}[i%2],
			}).GetKey().GetKeyId())
	}
	must.Value(r.service.RevokeKey(r.admin(), &identityv1.RevokeKeyRequest{KeyId: ids[2]}))(t)
	list := func(req *identityv1.ListKeysRequest) (got []string) {
		for {
			resp := must.Value(r.service.ListKeys(r.admin(), req))(t)
			require.LessOrEqual(t, len(resp.GetKeys()), 2)
			for _, k := range resp.GetKeys() {
				got = append(got, k.GetKeyId())
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return got
			}
		}
	}
	require.Equal(t, ids, list(&identityv1.ListKeysRequest{PageSize: 2, IncludeEnded: true}))
	require.Equal(t, append(ids[:2:2], ids[3:]...), list(&identityv1.ListKeysRequest{PageSize: 2}))
	require.Equal(t, []string{ids[0], ids[4], ids[6]}, list(&identityv1.ListKeysRequest{PageSize: 2, Namespace: "a"}))
	_, err := r.service.ListKeys(r.admin(), &identityv1.ListKeysRequest{PageToken: "nonsense"})
	require.ErrorIs(t, err, fault.CursorInvalid)
	must.Refuse(r.service.ListKeys(r.admin(), &identityv1.ListKeysRequest{PageSize: 501}))(t, fault.LimitExceeded)
}

// TestX15_ExpiryIsExact at, below and above the moment.
func TestX15_ExpiryIsExact(t *testing.T) {
	r := newRig(t)
	secret := r.create(&identityv1.CreateKeyRequest{
		Name: "ci", Role: identityv1.Role_ROLE_OPERATOR, ExpiresAfter: durationpb.New(time.Hour),
	}).GetSecret()
	held, release := r.keys.Hold(context.Background(), secret)
	defer release()
	r.clk.Advance(time.Hour - time.Microsecond)
	must.Value(r.enters(secret))(t)
	require.NoError(t, held.Err())
	r.clk.Advance(time.Microsecond)
	must.Refuse(r.enters(secret))(t, fault.Unauthenticated)
	select {
	case <-held.Done():
		require.ErrorIs(t, context.Cause(held), fault.Unauthenticated)
	case <-time.After(time.Minute):
		t.Fatal("what the key opened goes on")
	}
}

// TestI3_ADamagedRevocationRevokes: a revocation that cannot be read ends the key that it names,
// and no other.
func TestI3_ADamagedRevocationRevokes(t *testing.T) {
	r := newRig(t)
	revoked := r.create(&identityv1.CreateKeyRequest{Name: "one", Role: identityv1.Role_ROLE_OPERATOR})
	other := r.create(&identityv1.CreateKeyRequest{Name: "two", Role: identityv1.Role_ROLE_OPERATOR})
	for _, secret := range []string{revoked.GetSecret(), other.GetSecret()} {
		must.Value(r.enters(secret))(t)
	}
	id := revoked.GetKey().GetKeyId()
	r.keys.apply(journal.Line{Text: []byte(`{"wal_seq":9,"event_type":"key_report","payload":{"key_id":"` + id +
		`"},,}`)})
	must.Value(r.enters(revoked.GetSecret()))(t, "what is no revocation revokes nothing")
	held, release := r.keys.Hold(t.Context(), revoked.GetSecret())
	defer release()
	r.keys.apply(journal.Line{Text: []byte(`{"wal_seq":9,"event_type":"key_revoked","payload":{"key":{"key_id":"` + id +
		`","name":}}}`)})
	must.Refuse(r.enters(revoked.GetSecret()))(t, fault.Unauthenticated)
	<-held.Done()
	must.Value(r.enters(other.GetSecret()))(t)
}

// TestX15_UsesAreRecordedCoarsely: six lines an hour at most, and only of later uses.
func TestX15_UsesAreRecordedCoarsely(t *testing.T) {
	r := newRig(t)
	made := r.create(&identityv1.CreateKeyRequest{Name: "ci", Role: identityv1.Role_ROLE_OPERATOR})
	service := rpc.WithActor(context.Background(), rpc.Actor{
		Namespace: "default", Principal: "s", Role: rpc.RoleService,
	})
	r.keys.cfg.Report = func(_ context.Context, uses []*identityv1.KeyUse) error {
		return must.Err(r.service.ReportKeyUse(service, &identityv1.ReportKeyUseRequest{Uses: uses}))
	}
	used := func() time.Time {
		r.keys.reportUses(context.Background())
		got := must.Value(r.service.GetKey(r.admin(), &identityv1.GetKeyRequest{KeyId: made.GetKey().GetKeyId()}))(t)
		if got.GetKey().GetLastUsedAt() == nil {
			return time.Time{}
		}
		return got.GetKey().GetLastUsedAt().AsTime()
	}
	require.True(t, used().IsZero())
	for range 60 {
		must.Value(r.enters(made.GetSecret()))(t)
		require.WithinRange(t, used(), r.clk.Now().Add(-useGrain), r.clk.Now())
		r.clk.Advance(time.Minute)
	}
	lines := 0
	for _, ev := range r.journals.Events(t, Plane, registry) {
		if ev.Type == "key_used" {
			lines++
		}
	}
	require.Equal(t, 6, lines)
	must.Value(r.service.ReportKeyUse(service, &identityv1.ReportKeyUseRequest{Uses: []*identityv1.KeyUse{
		{KeyId: made.GetKey().GetKeyId(), UsedAt: timestamppb.New(epoch)},
		{
			KeyId:  "key_00000000000000000000000000",
			UsedAt: timestamppb.New(epoch),
		},
		{KeyId: made.GetKey().GetKeyId(), UsedAt: timestamppb.New(epoch.Add(100 * time.Hour))},
	}}))(t, "earlier ones, unknown ones and those of a clock ahead are passed over")
	require.WithinRange(t, used(), r.clk.Now().Add(-2*useGrain), r.clk.Now())
}

// TestX14_ReplayIsTheLiveState, also if it was written and read in pages, and a Keys that begins later knows
// the same.
func TestX14_ReplayIsTheLiveState(t *testing.T) {
	var seen journaltest.Seen
	service := rpc.WithActor(context.Background(), rpc.Actor{
		Namespace: "default", Principal: "s", Role: rpc.RoleService,
	})
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		var secrets, ids []string
		revoked := map[int]bool{}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			if len(ids) == 0 || rapid.Bool().Draw(rt, "create") {
				namespace := rapid.SampledFrom([]string{"", "acme", "zeta"}).Draw(rt, "namespace")
				resp := r.create(&identityv1.CreateKeyRequest{
					Name: "n", Role: identityv1.Role_ROLE_RUNNER, Namespace: namespace,
				})
				ids, secrets = append(ids, resp.GetKey().GetKeyId()), append(secrets, resp.GetSecret())
				continue
			}
			i := rapid.IntRange(0, len(ids)-1).Draw(rt, "which")
			if rapid.Bool().Draw(rt, "use") {
				r.clk.Advance(useGrain)
				must.Value(r.service.ReportKeyUse(service, &identityv1.ReportKeyUseRequest{
					Uses: []*identityv1.KeyUse{{KeyId: ids[i], UsedAt: timestamppb.New(r.clk.Now())}},
				}))(rt)
				continue
			}
			must.Value(r.service.RevokeKey(r.admin(), &identityv1.RevokeKeyRequest{KeyId: ids[i]}))(rt)
			revoked[i] = true
		}
		replayed := journaltest.Checked(NewState, 3, &seen)
		for _, ev := range r.journals.Events(t, Plane, registry) {
			require.NoError(rt, replayed.Apply(ev))
		}
		require.NoError(rt, replayed.Check())
		must.Value(journalView(r, func(st *State) {
			require.NoError(rt, journaltest.Same(st, replayed.Paged))
		}))(rt)
		late := NewKeys(KeysConfig{Sources: r.journals.Sources, Clock: r.clk})
		require.NoError(rt, late.Start(context.Background()))
		defer func() { require.NoError(rt, late.Stop(context.Background())) }()
		for i, secret := range secrets {
			_, err := late.Authenticate(context.Background(), secret)
			require.Equal(rt, revoked[i], err != nil, "%v", err)
		}
	})
	require.Empty(t, seen.Missing(&identityv1.KeyPage{}))
}

func journalView(r *rig, look func(st *State)) (int64, error) {
	_, seq, err := plane.View(r.admin(), r.service.engine, "", func(st *State) (struct{}, error) {
		look(st)
		return struct{}{}, nil
	})
	return seq, err
}

// Apply refuses what no rule of this plane emits.
func TestApplyRefusesWhatDoesNotFit(t *testing.T) {
	for _, payload := range []proto.Message{
		&identityv1.KeyRevoked{Key: &identityv1.Key{KeyId: "key_1"}}, &identityv1.KeyUsed{KeyId: "key_1"},
		&identityv1.Key{},
	} {
		require.Error(t, NewState().Apply(&journal.Event{Payload: payload}))
	}
	s := NewState()
	made := &journal.Event{Payload: &identityv1.KeyCreated{Key: &identityv1.Key{KeyId: "key_1"}}}
	require.NoError(t, s.Apply(made))
	require.Error(t, s.Apply(made))
}

// TestX15_KeysHaveALimit at, below and above it.
func TestX15_KeysHaveALimit(t *testing.T) {
	st := NewState()
	env := journal.Env{Now: epoch, Actor: journal.Actor{
		Namespace: "default", Principal: "root", Role: rpc.RoleInstallationAdmin,
	}, NewID: func(p string) string { return p + "x" }}
	req := &identityv1.CreateKeyRequest{Name: "n", Role: identityv1.Role_ROLE_RUNNER}
	for i := range MaxKeys - 1 {
		st.keys[fmt.Sprint(i)] = &record{}
	}
	must.Value(decideCreateKey(st, env, req, "acme", keyfile.Of(nil).Active()))(t)
	st.keys["last"] = &record{}
	_, err := decideCreateKey(st, env, req, "acme", keyfile.Of(nil).Active())
	require.ErrorIs(t, err, fault.QuotaExceeded)
	require.Equal(t, fmt.Sprint(MaxKeys), fault.From(err).Metadata()["limit"])
}

// TestI15_KeysOfANamespaceHaveALimit at, below and above it.
func TestI15_KeysOfANamespaceHaveALimit(t *testing.T) {
	st := NewState()
	env := journal.Env{
		Now: epoch, Actor: journal.Actor{Namespace: "acme", Principal: "own", Role: rpc.RoleAdmin},
		NewID: func(p string) string { return p + "x" },
	}
	req := &identityv1.CreateKeyRequest{Name: "n", Role: identityv1.Role_ROLE_RUNNER}
	for i := range MaxNamespaceKeys - 1 {
		require.NoError(t,
			st.Apply(&journal.Event{
				Payload: &identityv1.KeyCreated{Key: &identityv1.Key{KeyId: fmt.Sprint(i), Namespace: "acme"}},
			}))
	}
	must.Value(decideCreateKey(st, env, req, "acme", keyfile.Of(nil).Active()))(t)
	require.NoError(t,
		st.Apply(&journal.Event{
			Payload: &identityv1.KeyCreated{Key: &identityv1.Key{KeyId: "last", Namespace: "acme"}},
		}))
	_, err := decideCreateKey(st, env, req, "acme", keyfile.Of(nil).Active())
	require.ErrorIs(t, err, fault.QuotaExceeded)
	require.Equal(t, fmt.Sprint(MaxNamespaceKeys), fault.From(err).Metadata()["limit"])
	env.Actor.Role = rpc.RoleInstallationAdmin
	must.Value(decideCreateKey(st, env, req, "acme", keyfile.Of(nil).Active()))(t)
}

func TestBootstrapTokens(t *testing.T) {
	d := &Authenticator{Keyring: rpc.NewKeyring(nil, false)}
	require.NoError(t, d.SetBootstrap(""))
	must.Refuse(d.Authenticate(t.Context(), ""))(t, fault.Unauthenticated)
	require.Error(t, d.SetBootstrap(strings.Repeat("x", MinBootstrap-1)))
	require.Error(t, d.SetBootstrap(strings.Repeat("x", MinBootstrap)+" "))
	require.NoError(t, d.SetBootstrap(strings.Repeat("x", MinBootstrap)))
	a := must.Value(d.Authenticate(t.Context(), strings.Repeat("x", MinBootstrap)))(t)
	require.Equal(t, rpc.RoleInstallationAdmin, a.Role)
	must.Refuse(d.Authenticate(t.Context(), strings.Repeat("x", MinBootstrap+1)))(t, fault.Unauthenticated)
}

func FuzzKeyOf(f *testing.F) {
	f.Add("qk_00000000000000000000000000_" + strings.Repeat("0", 64))
	f.Add("qk_")
	f.Fuzz(func(t *testing.T, secret string) {
		id, ok := keyOf(secret)
		if ok {
			require.Len(t, id, len(keyPrefix)+26)
			require.Len(t, secret, secretLength)
		}
	})
}
