package audit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/auditchain"
	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/audit"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// rig is an audit plane over a log that outlives it, and a recorder that calls it directly.
type rig struct {
	t        *testing.T
	log      framelog.Log
	clock    *clock.Fake
	service  *audit.Service
	recorder *audit.Recorder
	fails    bool // the plane cannot be reached
	loses    bool // the plane's responses are lost
}

// client calls the service as another service does.
func (r *rig) RecordAudit(ctx context.Context, req *auditv1.RecordAuditRequest, _ ...grpc.CallOption) (
	*auditv1.RecordAuditResponse, error,
) {
	if r.fails {
		return nil, errors.New("away")
	}
	resp, err := r.service.RecordAudit(rpc.WithActor(ctx, rpc.Actor{
		Namespace: "default", Principal: "quartet", Role: rpc.RoleService,
	}), req)
	if r.loses {
		return nil, errors.New("lost")
	}
	return resp, err
}

func (r *rig) ListAudit(ctx context.Context, req *auditv1.ListAuditRequest, _ ...grpc.CallOption) (
	*auditv1.ListAuditResponse, error,
) {
	return r.service.ListAudit(ctx, req)
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, log: journaltest.NewMemLog(), clock: clock.NewFake(epoch)}
	r.recorder = audit.NewRecorder(audit.RecorderConfig{Client: r, Clock: r.clock})
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *rig) start() {
	r.service = must.Value(audit.New(plane.Deps{
		Log:     func(string, int) (framelog.Log, error) { return r.log, nil },
		Sources: func(string) ([]journal.Source, error) { return nil, nil }, Clock: r.clock,
	}))(r.t)
	require.NoError(r.t, r.service.Start(context.Background()))
}

func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(r.t, r.service.Stop(ctx))
}

// as returns the context of a caller.
func as(a rpc.Actor) context.Context { return rpc.WithActor(context.Background(), a) }

var (
	root     = rpc.Actor{Namespace: "default", Principal: "root", Role: rpc.RoleInstallationAdmin, KeyID: "key_root"}
	admin    = rpc.Actor{Namespace: "acme", Principal: "boss", Role: rpc.RoleAdmin, KeyID: "key_boss"}
	operator = rpc.Actor{Namespace: "acme", Principal: "ci", Role: rpc.RoleOperator, KeyID: "key_ci"}
)

const pause = agentv1.AgentService_PauseAgent_FullMethodName

// call makes a call through the recorder that ends with err.
func (r *rig) call(a rpc.Actor, method string, req, resp proto.Message, err error) error {
	return must.Err(r.recorder.Unary(as(a), method, req, func(context.Context, any) (any, error) { return resp, err }))
}

func (r *rig) list(a rpc.Actor, req *auditv1.ListAuditRequest) []*auditv1.AuditEntry {
	r.t.Helper()
	var all []*auditv1.AuditEntry
	for {
		resp := must.Value(r.service.ListAudit(as(a), req))(r.t)
		all = append(all, resp.GetEntries()...)
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

func numbers(entries []*auditv1.AuditEntry) []int64 {
	var out []int64
	for _, e := range entries {
		out = append(out, e.GetNumber())
	}
	return out
}

// TestI16_WhoDidWhat: a call has an entry before it is executed and one for how it ended, and all
// entries are one chain, also across a restart.
func TestI16_WhoDidWhat(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.call(operator, pause, &agentv1.PauseAgentRequest{AgentId: "keeper", RequestId: "p1"},
		&agentv1.PauseAgentResponse{}, nil))
	gone := fault.NotFound.New("no such agent")
	require.ErrorIs(t, r.call(operator, pause, &agentv1.PauseAgentRequest{AgentId: "nobody"}, nil, gone), gone)
	r.stop()
	r.start()
	made := &identityv1.CreateKeyResponse{
		Key:    &identityv1.Key{KeyId: "key_new", Namespace: "acme", Name: "n"},
		Secret: "qk_secret",
	}
	create := &identityv1.CreateKeyRequest{Name: "n", Role: identityv1.Role_ROLE_OPERATOR, Namespace: "acme"}
	require.NoError(t, r.call(root, identityv1.IdentityService_CreateKey_FullMethodName, create, made, nil))

	all := r.list(root, &auditv1.ListAuditRequest{})
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6}, numbers(all))
	var before *auditv1.AuditEntry
	for _, e := range all {
		require.NoError(t, auditchain.Check(before, e))
		require.NotContains(t, e.String(), "qk_secret")
		before = e
	}
	first := proto.CloneOf(all[0])
	first.Hash = ""
	require.True(t, proto.Equal(&auditv1.AuditEntry{
		Number: 1, At: timestamppb.New(epoch), Kind: auditv1.AuditKind_AUDIT_KIND_ATTEMPT,
		Method: "quartet.agent.v1.AgentService/PauseAgent", Namespace: "acme", Principal: "ci", Role: "operator",
		KeyId: "key_ci", TargetNamespace: "acme", Target: map[string]string{"agent_id": "keeper"}, RequestId: "p1",
	}, first), "%v", first)
	require.Equal(t, []any{int64(1), "OK"}, []any{all[1].GetAttempt(), all[1].GetCode()})
	require.Equal(t, []any{int64(3), "NotFound", "NOT_FOUND"}, []any{
		all[3].GetAttempt(), all[3].GetCode(),
		all[3].GetReason(),
	})
	require.Equal(t, map[string]string{"name": "n", "namespace": "acme", "role": "operator"}, all[4].GetTarget())
	require.Equal(t, "key_new", all[5].GetTarget()["key_id"])
	require.Equal(t, []string{"default", "acme"}, []string{all[5].GetNamespace(), all[5].GetTargetNamespace()})

	// What was changed, removed or inserted does not pass.
	changed := proto.CloneOf(all[2])
	changed.Principal = "somebody"
	require.ErrorContains(t, auditchain.Check(all[1], changed), "entry 3 was changed")
	require.ErrorContains(t, auditchain.Check(all[1], all[3]), "entries are missing")
	forged := proto.CloneOf(all[2])
	forged.Principal = "somebody"
	forged.Hash = auditchain.Hash(forged)
	require.NoError(t, auditchain.Check(all[1], forged))
	require.ErrorContains(t, auditchain.Check(forged, all[3]), "does not follow")
}

// TestI16_WithoutItsEntryNothingHappens: a call is refused if it cannot be recorded first.
func TestI16_WithoutItsEntryNothingHappens(t *testing.T) {
	r := newRig(t)
	r.fails = true
	_, err := r.recorder.Unary(as(operator), pause, &agentv1.PauseAgentRequest{AgentId: "keeper"},
		func(context.Context, any) (any, error) {
			t.Error("the call was executed")
			return nil, nil
		})
	require.ErrorIs(t, err, fault.NotReady)
	require.ErrorContains(t, err, "was not executed")
	require.NoError(t, r.call(operator, agentv1.AgentService_GetAgent_FullMethodName, &agentv1.GetAgentRequest{
		AgentId: "keeper",
	}, nil, nil), "a call that is not recorded")
}

// TestI16_WhatIsNotRecorded: what agents and services do, other methods, what an earlier service recorded, and the
// further pages of a list.
func TestI16_WhatIsNotRecorded(t *testing.T) {
	r := newRig(t)
	for _, role := range []string{rpc.RoleAgent, rpc.RoleService, rpc.RoleWorker} {
		require.NoError(t, r.call(rpc.Actor{Namespace: "acme", Principal: "p", Role: role}, pause,
			&agentv1.PauseAgentRequest{}, nil, nil))
	}
	require.NoError(t, r.call(operator, agentv1.AgentService_ListAgents_FullMethodName, &agentv1.ListAgentsRequest{},
		nil, nil))
	require.NoError(t, r.call(admin, identityv1.IdentityService_ListKeys_FullMethodName, &identityv1.ListKeysRequest{
		PageToken: "x",
	}, nil, nil))
	require.NoError(t, r.call(admin, auditv1.AuditService_ListAudit_FullMethodName, &auditv1.ListAuditRequest{After: 3},
		nil, nil))
	must.Value(r.recorder.Unary(rpc.WithRecorded(as(operator)), pause, &agentv1.PauseAgentRequest{},
		func(context.Context, any) (any, error) { return nil, nil }))(t)
	require.Empty(t, r.list(root, &auditv1.ListAuditRequest{}))
	require.NoError(t, r.call(admin, identityv1.IdentityService_ListKeys_FullMethodName, &identityv1.ListKeysRequest{},
		nil, nil))
	require.Len(t, r.list(root, &auditv1.ListAuditRequest{}), 2)
}

// TestI16_WhoSeesWhat: an admin sees what its namespace did and what was done to it.
func TestI16_WhoSeesWhat(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.call(operator, pause, &agentv1.PauseAgentRequest{AgentId: "a"}, nil, nil))
	require.NoError(t, r.call(rpc.Actor{Namespace: "zeta", Principal: "ci", Role: rpc.RoleOperator}, pause,
		&agentv1.PauseAgentRequest{AgentId: "b"}, nil, nil))
	r.clock.Advance(time.Hour)
	require.NoError(t, r.call(root, identityv1.IdentityService_CreateKey_FullMethodName, &identityv1.CreateKeyRequest{
		Name: "n", Namespace: "acme",
	}, nil, nil))
	for name, c := range map[string]struct {
		as   rpc.Actor
		req  *auditv1.ListAuditRequest
		want []int64
	}{
		"all":               {root, &auditv1.ListAuditRequest{}, []int64{1, 2, 3, 4, 5, 6}},
		"pages":             {root, &auditv1.ListAuditRequest{PageSize: 1}, []int64{1, 2, 3, 4, 5, 6}},
		"a namespace":       {root, &auditv1.ListAuditRequest{Namespace: "zeta"}, []int64{3, 4}},
		"its own":           {admin, &auditv1.ListAuditRequest{}, []int64{1, 2, 5, 6}},
		"its own, by name":  {admin, &auditv1.ListAuditRequest{Namespace: "acme", PageSize: 1}, []int64{1, 2, 5, 6}},
		"a caller":          {root, &auditv1.ListAuditRequest{Principal: "ci"}, []int64{1, 2, 3, 4}},
		"a key":             {root, &auditv1.ListAuditRequest{KeyId: "key_ci"}, []int64{1, 2}},
		"a method":          {root, &auditv1.ListAuditRequest{Method: "CreateKey"}, []int64{5, 6}},
		"after":             {root, &auditv1.ListAuditRequest{After: 4}, []int64{5, 6}},
		"after the end":     {root, &auditv1.ListAuditRequest{After: 6}, nil},
		"far after the end": {root, &auditv1.ListAuditRequest{After: 1 << 40}, nil},
		"since": {
			root, &auditv1.ListAuditRequest{Since: timestamppb.New(epoch.Add(time.Hour))},
			[]int64{5, 6},
		},
		"until": {
			root, &auditv1.ListAuditRequest{Until: timestamppb.New(epoch.Add(time.Hour))},
			[]int64{1, 2, 3, 4},
		},
		"until before since": {root, &auditv1.ListAuditRequest{
			Since: timestamppb.New(epoch.Add(time.Hour)),
			Until: timestamppb.New(epoch),
		}, nil},
	} {
		require.Equal(t, c.want, numbers(r.list(c.as, c.req)), name)
	}
	_, err := r.service.ListAudit(as(admin), &auditv1.ListAuditRequest{Namespace: "zeta"})
	require.ErrorIs(t, err, fault.PermissionDenied)
	for _, n := range []int{0, 1001} {
		_, err = r.RecordAudit(t.Context(), &auditv1.RecordAuditRequest{Entries: make([]*auditv1.AuditEntry, n)})
		require.Error(t, err)
	}
	must.Refuse(r.service.ListAudit(as(root), &auditv1.ListAuditRequest{After: -1}))(t, fault.InvalidArgument)
	must.Refuse(r.service.ListAudit(as(root), &auditv1.ListAuditRequest{PageToken: "x"}))(t, fault.CursorInvalid)
}

// TestI16_RefusedLoginsAreCounted by source and minute, and kept while they cannot be
// recorded.
func TestI16_RefusedLoginsAreCounted(t *testing.T) {
	r := newRig(t)
	for range 500 {
		r.recorder.Refused(context.Background())
	}
	r.fails = true
	require.NoError(t, r.recorder.Start(t.Context()))
	require.NoError(t, r.recorder.Stop(context.Background())) // they are kept
	r.fails = false
	r.clock.Advance(time.Minute)
	r.recorder.Refused(context.Background())
	require.NoError(t, r.recorder.Start(t.Context()))
	require.NoError(t, r.recorder.Stop(context.Background()))
	all := r.list(root, &auditv1.ListAuditRequest{})
	require.Len(t, all, 2)
	for i, want := range []int64{500, 1} {
		require.Equal(t, auditv1.AuditKind_AUDIT_KIND_REFUSED_LOGINS, all[i].GetKind())
		require.Equal(t, want, all[i].GetCount())
		require.Equal(t, epoch.Add(time.Duration(i)*time.Minute).Truncate(time.Minute), all[i].GetMinute().AsTime())
	}
	require.Empty(t, r.list(admin, &auditv1.ListAuditRequest{}), "they belong to no namespace")
}

// TestI16_ALostAnswerCountsNothingTwice: refused credentials whose append was executed without an answer are in the log
// once, and those of the time since have their own entry.
func TestI16_ALostAnswerCountsNothingTwice(t *testing.T) {
	r := newRig(t)
	for _, n := range []int{5, 2} {
		for range n {
			r.recorder.Refused(context.Background())
		}
		r.loses = n == 5
		require.NoError(t, r.recorder.Start(t.Context()))
		require.NoError(t, r.recorder.Stop(context.Background()))
	}
	all := r.list(root, &auditv1.ListAuditRequest{})
	require.Len(t, all, 2)
	require.Equal(t, int64(5), all[0].GetCount())
	require.Equal(t, int64(2), all[1].GetCount())
}

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, auditv1.File_quartet_audit_v1_audit_event_proto, audit.NewState)
}
