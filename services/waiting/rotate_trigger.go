package waiting

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/keyfile"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/secrets"
)

// RotateExternalTrigger replaces a trigger's secret, for example after a leak (SPEC P3). The
// old address is refused as revoked and not as unknown, because its user had the secret and
// should learn why it fails.
func (s *Service) RotateExternalTrigger(ctx context.Context, req *waitingv1.RotateExternalTriggerRequest) (
	*waitingv1.RotateExternalTriggerResponse, error,
) {
	if err := fault.First(
		admitWrite(ctx, req),
		fault.ID("trigger_id", req.GetTriggerId(), "trg_"),
		mayGiveSecret(rpc.ActorFrom(ctx), req.GetSigningSecret()),
	); err != nil {
		return nil, err
	}
	ring := s.deps.Keys.Ring()
	args, equivalent := secrets.Arguments(ring, req, func(m *waitingv1.RotateExternalTriggerRequest, digest string) {
		m.SigningSecret = digest
	})
	resp, err := plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.RotateExternalTriggerResponse]{
		Method: "RotateExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: args,
		Equivalent: equivalent,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.RotateExternalTriggerResponse], error) {
			return decideRotate(st, env, req, ring)
		},
		Answer: journal.AnswerOf(func(p *waitingv1.ExternalTriggerRotated) *waitingv1.RotateExternalTriggerResponse {
			return &waitingv1.RotateExternalTriggerResponse{Trigger: p.GetTrigger()}
		}),
	})
	if err != nil {
		return nil, err
	}
	token, signing, err := s.shown(resp.GetTrigger())
	if err != nil {
		return nil, err
	}
	return &waitingv1.RotateExternalTriggerResponse{
		Trigger: publicTrigger(resp.GetTrigger()), Token: token,
		Url: s.address(token), SigningSecret: signing,
	}, nil
}

// decideRotate is the rule of RotateExternalTrigger. A trigger that has ended cannot be rotated. The
// new secrets are of the active key. A caller's signing secret stays if the request has no other, and is encrypted
// again under that key.
func decideRotate(s *State, env journal.Env, req *waitingv1.RotateExternalTriggerRequest, ring keyfile.Ring) (
	journal.Decision[*waitingv1.RotateExternalTriggerResponse], error,
) {
	var d journal.Decision[*waitingv1.RotateExternalTriggerResponse]
	t, err := s.trigger(env.Actor.Namespace, req.GetAgentId(), req.GetTriggerId())
	if err != nil {
		return d, err
	}
	if err := fault.First(checkAddress(t.GetStatus(), t, env.Now), secrets.ValidSigning(t.GetSignatureScheme(),
		req.GetSigningSecret())); err != nil {
		return d, err
	}
	n := nextTrigger(t)
	n.Generation++
	n.RotatedAt = timestamppb.New(env.Now)
	active := secrets.Active(ring)
	n.InstallationKeyId = active.KeyID()
	signingSecret := req.GetSigningSecret()
	if signingSecret == "" && len(t.GetSealedSigningSecret()) > 0 {
		if signingSecret, err = secrets.SigningOf(ring, t); err != nil {
			return d, err
		}
	}
	if signingSecret != "" {
		if n.SealedSigningSecret, err = active.Seal(n.GetTriggerId(), signingSecret); err != nil {
			return d, err
		}
	}
	n.TokenHash = id.Hash(active.Token(n))
	d.Events = []*journal.Event{triggerEvent(env.Actor.Namespace, n, &waitingv1.ExternalTriggerRotated{Trigger: n})}
	return d, nil
}
