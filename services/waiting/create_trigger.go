package waiting

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/secrets"
)

// CreateExternalTrigger creates a trigger, whose secret address accepts deliveries of an
// outside system (SPEC P3). The secret is derived from the trigger's id and the
// installation's key, so a repeated request returns the same one although only its hash is
// stored.
func (s *Service) CreateExternalTrigger(ctx context.Context, req *waitingv1.CreateExternalTriggerRequest) (
	*waitingv1.CreateExternalTriggerResponse, error,
) {
	if err := fault.First(
		admitWrite(ctx, req),
		validItemID(req.GetWorkItemId()),
		fault.TextBytes("description", req.GetDescription(), fault.MaxFreeTextBytes, false),
		secrets.ValidSigning(req.GetSignatureScheme(), req.GetSigningSecret()),
		mayGiveSecret(rpc.ActorFrom(ctx), req.GetSigningSecret()),
	); err != nil {
		return nil, err
	}
	if expiresAt := req.GetExpiresAt(); expiresAt != nil && expiresAt.CheckValid() != nil {
		return nil, fault.Invalid("expires_at", expiresAt.String(), "must be a time between the years 1 and 9999")
	}
	target, refused := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), false)
	args, equivalent := secrets.Arguments(s.deps.Keys.Ring(), req, func(m *waitingv1.CreateExternalTriggerRequest,
		digest string,
	) {
		m.SigningSecret = digest
	})
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CreateExternalTriggerResponse]{
		Method: "CreateExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: args,
		Equivalent: equivalent,
		Decide: forAgent(req.GetAgentId(), refused,
			func(st *State, env journal.Env) (journal.Decision[*waitingv1.CreateExternalTriggerResponse], error) {
				return decideCreateTrigger(env, req, target, secrets.Active(s.deps.Keys.Ring()))
			}),
		Answer: journal.AnswerOf(func(p *waitingv1.ExternalTriggerCreated) *waitingv1.CreateExternalTriggerResponse {
			return &waitingv1.CreateExternalTriggerResponse{Trigger: p.GetTrigger()}
		}),
	})
	if err != nil {
		return nil, err
	}
	token, signing, err := s.shown(resp.GetTrigger())
	if err != nil {
		return nil, err
	}
	return &waitingv1.CreateExternalTriggerResponse{
		Trigger: publicTrigger(resp.GetTrigger()), Token: token,
		Url: s.address(token), SigningSecret: signing,
	}, nil
}

// shown returns the secrets that the response to the creation or the rotation of a trigger shows:
// the token, and the signing secret if it was generated here.
func (s *Service) shown(t *waitingv1.Trigger) (token, signing string, err error) {
	made, err := secrets.Of(s.deps.Keys.Ring(), t)
	if err != nil {
		return "", "", err
	}
	if t.GetSignatureScheme() != waitingv1.SignatureScheme_SIGNATURE_SCHEME_UNSPECIFIED &&
		len(t.GetSealedSigningSecret()) == 0 {
		signing = made.Signing(t)
	}
	return made.Token(t), signing, nil
}

// address returns the URL at which outside systems reach a trigger with this token.
func (s *Service) address(token string) string {
	return strings.TrimSuffix(s.cfg.PublicURL, "/") + "/v1/triggers/" + token
}

// mayGiveSecret refuses a signing secret from callers other than admins and operators: the
// rounds of an agent are stored with the arguments of its calls.
func mayGiveSecret(actor rpc.Actor, secret string) error {
	if secret != "" && !actor.HasAny(rpc.RoleAdmin, rpc.RoleOperator) {
		return fault.PermissionDenied.New("signing_secret may be given by operators only, because the calls of " +
			"agents are recorded; leave it out, and one is generated")
	}
	return nil
}

// decideCreateTrigger is the rule of CreateExternalTrigger. target is the trigger's item, empty if it has none. The
// token is derived, and a given signing secret sealed, with made. The response is made later, from the event.
func decideCreateTrigger(env journal.Env, req *waitingv1.CreateExternalTriggerRequest, target string,
	made secrets.Secrets,
) (journal.Decision[*waitingv1.CreateExternalTriggerResponse], error) {
	var d journal.Decision[*waitingv1.CreateExternalTriggerResponse]
	if expiresAt := req.GetExpiresAt(); expiresAt != nil && !expiresAt.AsTime().After(env.Now) {
		return d, fault.Invalid("expires_at", expiresAt.AsTime().Format(time.RFC3339), "must lie in the future")
	}
	if err := within("expires_at", env.Now, req.GetExpiresAt(), false); err != nil {
		return d, err
	}
	t := &waitingv1.Trigger{
		TriggerId: env.NewID("trg_"), AgentId: req.GetAgentId(), WorkItemId: target, Description: req.GetDescription(),
		DeliveryMode: orWakeHint(req.GetDeliveryMode()), Status: waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE,
		Revision: 1, CreatedAt: timestamppb.New(env.Now), SignatureScheme: req.GetSignatureScheme(),
		InstallationKeyId: made.KeyID(),
	}
	if expiresAt := req.GetExpiresAt(); expiresAt != nil {
		t.ExpiresAt = pbjson.Timestamp(expiresAt.AsTime())
	}
	if req.GetSigningSecret() != "" {
		var err error
		if t.SealedSigningSecret, err = made.Seal(t.GetTriggerId(), req.GetSigningSecret()); err != nil {
			return d, err
		}
	}
	t.TokenHash = id.Hash(made.Token(t))
	d.Events = []*journal.Event{triggerEvent(env.Actor.Namespace, t, &waitingv1.ExternalTriggerCreated{Trigger: t})}
	return d, nil
}

// publicTrigger returns a copy of a trigger without its hash, its sealed secret and its key.
func publicTrigger(t *waitingv1.Trigger) *waitingv1.Trigger {
	v := proto.CloneOf(t)
	v.TokenHash, v.SealedSigningSecret, v.InstallationKeyId = "", nil, ""
	return v
}

// nextTrigger returns a copy of a trigger with the next revision, which the caller may change.
func nextTrigger(t *waitingv1.Trigger) *waitingv1.Trigger {
	n := proto.CloneOf(t)
	n.Revision++
	return n
}

// expired reports whether the expiry of a trigger has been reached at now, whether or not its
// event is written.
func expired(t *waitingv1.Trigger, now time.Time) bool {
	return t.GetExpiresAt() != nil && !now.Before(t.GetExpiresAt().AsTime())
}

// triggerEvent returns the event of a payload about a trigger.
func triggerEvent(namespace string, t *waitingv1.Trigger, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: namespace, AgentID: t.GetAgentId(), WorkItemID: t.GetWorkItemId(),
		Payload: payload,
	}
}
