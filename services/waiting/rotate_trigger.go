package waiting

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// RotateExternalTrigger replaces a trigger's secret, for example after a leak (SPEC P3). The
// old address is refused as revoked and not as unknown, because its user had the secret and
// should learn why it fails.
func (s *Service) RotateExternalTrigger(ctx context.Context, req *waitingv1.RotateExternalTriggerRequest) (*waitingv1.RotateExternalTriggerResponse, error) {
	if err := fault.First(
		admitWrite(ctx, req),
		fault.ID("trigger_id", req.GetTriggerId(), "trg_"),
		mayGiveSecret(rpc.ActorFrom(ctx), req.GetSigningSecret()),
	); err != nil {
		return nil, err
	}
	args := proto.CloneOf(req)
	if req.GetSigningSecret() != "" {
		args.SigningSecret = s.secrets().digest(req.GetSigningSecret())
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.RotateExternalTriggerResponse]{
		Method: "RotateExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: args,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.RotateExternalTriggerResponse], error) {
			return decideRotate(st, env, req, s.secrets())
		},
		Answer: journal.AnswerOf(func(p *waitingv1.ExternalTriggerRotated) *waitingv1.RotateExternalTriggerResponse {
			token := s.secrets().token(p.GetTrigger())
			return &waitingv1.RotateExternalTriggerResponse{
				Trigger: publicTrigger(p.GetTrigger()), Token: token, Url: s.address(token), SigningSecret: s.generatedSigningSecret(p.GetTrigger()),
			}
		}),
	})
}

// decideRotate is the rule of RotateExternalTrigger. A trigger that has ended cannot be rotated.
func decideRotate(s *State, env journal.Env, req *waitingv1.RotateExternalTriggerRequest, secrets secrets) (journal.Decision[*waitingv1.RotateExternalTriggerResponse], error) {
	var d journal.Decision[*waitingv1.RotateExternalTriggerResponse]
	t, err := s.trigger(env.Actor.Namespace, req.GetAgentId(), req.GetTriggerId())
	if err != nil {
		return d, err
	}
	if err := fault.First(checkAddress(t.GetStatus(), t, env.Now), validSigning(t.GetSignatureScheme(), req.GetSigningSecret())); err != nil {
		return d, err
	}
	n := nextTrigger(t)
	n.Generation++
	n.RotatedAt = timestamppb.New(env.Now)
	if req.GetSigningSecret() != "" {
		if n.SealedSigningSecret, err = secrets.seal(n.GetTriggerId(), req.GetSigningSecret()); err != nil {
			return d, err
		}
	}
	n.TokenHash = id.Hash(secrets.token(n))
	d.Events = []*journal.Event{triggerEvent(env.Actor.Namespace, n, &waitingv1.ExternalTriggerRotated{Trigger: n})}
	return d, nil
}
