package identity

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// shortestLife and longestLife bound expires_after.
	shortestLife = time.Second
	longestLife  = 10 * 365 * 24 * time.Hour
	// MaxKeys bounds the keys of an installation, ended ones included: all of
	// them are in the memory of every process.
	MaxKeys = 100_000
	// MaxNamespaceKeys bounds the keys that a namespace may have before its own admins can add no
	// more, ended ones included, so that one tenant does not use up MaxKeys.
	MaxNamespaceKeys = 10_000
)

// CreateKey creates a key and returns its secret (SPEC X15, I15). The namespace is the caller's
// unless the request names one. It waits, for at most catchUpTerm, until this process accepts
// the key.
func (s *Service) CreateKey(ctx context.Context, req *identityv1.CreateKeyRequest) (*identityv1.CreateKeyResponse,
	error,
) {
	namespace := req.GetNamespace()
	if namespace == "" {
		namespace = rpc.ActorFrom(ctx).Namespace
	}
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.Name("name", req.GetName()),
		fault.Name("namespace", namespace),
		validRole(req),
		validLimits(req),
		validLife(req.GetExpiresAfter()),
		administers(actor, namespace),
		mayIssue(actor, req.GetRole()),
	); err != nil {
		return nil, err
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *identityv1.CreateKeyResponse]{
		Method: "CreateKey", RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*identityv1.CreateKeyResponse], error) {
			return decideCreateKey(st, env, req, namespace, s.deps.Installation.Ring().Active())
		},
		Answer: journal.AnswerOf(func(p *identityv1.KeyCreated) *identityv1.CreateKeyResponse {
			return &identityv1.CreateKeyResponse{Key: p.GetKey()}
		}),
	})
	if err != nil {
		return nil, err
	}
	if resp.Secret, err = secretAgain(s.deps.Installation.Ring(), resp.GetKey()); err != nil {
		return nil, err
	}
	s.deps.Known(ctx, resp.GetKey().GetKeyId())
	return resp, nil
}

// decideCreateKey is the rule of CreateKey. MaxKeys and MaxNamespaceKeys count ended keys too. The secret, of which
// the event has a hash, is derived from the key installation and the new key's id.
func decideCreateKey(st *State, env journal.Env, req *identityv1.CreateKeyRequest, namespace string,
	installation keyfile.Key,
) (journal.Decision[*identityv1.CreateKeyResponse], error) {
	var d journal.Decision[*identityv1.CreateKeyResponse]
	if len(st.keys) >= MaxKeys {
		return d, fault.QuotaExceeded.Newf("the installation has %d keys, which is the most it holds", len(st.keys)).
			With("quota", "keys").With("limit", fmt.Sprint(MaxKeys)).With("value", fmt.Sprint(len(st.keys)))
	}
	if n := st.counts[namespace]; n >= MaxNamespaceKeys && env.Actor.Role != rpc.RoleInstallationAdmin {
		return d, fault.QuotaExceeded.Newf("namespace %s has %d keys, which is the most that its own admins may "+
			"create; an installation_admin can create more", namespace, n).
			With("quota", "keys").With("limit", fmt.Sprint(MaxNamespaceKeys)).With("value", fmt.Sprint(n))
	}
	k := &identityv1.Key{
		KeyId: env.NewID(keyPrefix), Namespace: namespace, Role: req.GetRole(), Name: req.GetName(),
		AgentId: req.GetAgentId(),
		Status:  identityv1.KeyStatus_KEY_STATUS_ACTIVE, CreatedAt: timestamppb.New(env.Now), CreatedBy: by(env.Actor),
		Revision:          1,
		InstallationKeyId: installation.ID, AgentIds: rpc.NamesOf(req.GetAgentIds()).List(),
		Tools: rpc.NamesOf(req.GetTools()).List(),
	}
	if life := req.GetExpiresAfter(); life != nil {
		k.ExpiresAt = timestamppb.New(env.Now.Add(life.AsDuration().Truncate(time.Microsecond)))
	}
	d.Events = []*journal.Event{
		{Namespace: namespace, Payload: &identityv1.KeyCreated{
			Key: k, SecretHash: hashOf(secretOf(installation, k.GetKeyId())),
		}},
	}
	return d, nil
}

// by returns an actor as keys name it: namespace/principal.
func by(a journal.Actor) string { return a.Namespace + "/" + a.Principal }

// roleNames has the names of roles in credentials.
var roleNames = map[identityv1.Role]string{
	identityv1.Role_ROLE_INSTALLATION_ADMIN: rpc.RoleInstallationAdmin,
	identityv1.Role_ROLE_ADMIN:              rpc.RoleAdmin, identityv1.Role_ROLE_OPERATOR: rpc.RoleOperator,
	identityv1.Role_ROLE_RUNNER: rpc.RoleRunner,
	identityv1.Role_ROLE_AGENT:  rpc.RoleAgent, identityv1.Role_ROLE_WORKER: rpc.RoleWorker,
	identityv1.Role_ROLE_INTEGRATION: rpc.RoleIntegration,
	identityv1.Role_ROLE_SERVICE:     rpc.RoleService,
}

// roleOf returns the role with a name, unspecified for another text.
func roleOf(name string) identityv1.Role {
	for r, n := range roleNames {
		if n == name {
			return r
		}
	}
	return identityv1.Role_ROLE_UNSPECIFIED
}

// validRole validates the role of a request, and that it names an agent exactly if the role is
// agent.
func validRole(req *identityv1.CreateKeyRequest) error {
	const roles = "must be installation_admin, admin, operator, runner, agent, worker or integration"
	switch role := req.GetRole(); {
	case role == identityv1.Role_ROLE_SERVICE:
		return fault.Invalid("role", "service", roles+"; services know each other by the installation's key")
	case roleNames[role] == "":
		return fault.Invalid("role", strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_")), roles)
	case role == identityv1.Role_ROLE_AGENT:
		return fault.Name("agent_id", req.GetAgentId())
	case req.GetAgentId() != "":
		return fault.Invalid("agent_id", req.GetAgentId(), "must be left out: only a key of role agent is an agent's")
	}
	return nil
}

// validLife validates expires_after, which may be nil: the key then never expires.
func validLife(d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if life := d.AsDuration(); d.CheckValid() != nil || life < shortestLife || life > longestLife {
		return fault.Invalid("expires_after", d.AsDuration().String(), "must be 1s to 87600h (10 years)")
	}
	return nil
}
