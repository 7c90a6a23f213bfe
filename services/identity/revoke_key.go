package identity

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// RevokeKey revokes a key. Revoking it again changes nothing and returns it (SPEC X7).
func (s *Service) RevokeKey(ctx context.Context, req *identityv1.RevokeKeyRequest) (*identityv1.RevokeKeyResponse,
	error,
) {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.ID("key_id", req.GetKeyId(), keyPrefix),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *identityv1.RevokeKeyResponse]{
		Frees: true, Method: "RevokeKey", RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*identityv1.RevokeKeyResponse], error) {
			return decideRevokeKey(st, env, plane.ActorOf(env.Actor), req.GetKeyId())
		},
		Answer: journal.AnswerOf(func(p *identityv1.KeyRevoked) *identityv1.RevokeKeyResponse {
			return &identityv1.RevokeKeyResponse{Key: p.GetKey()}
		}),
	})
}

// decideRevokeKey is the rule of RevokeKey. For a key that is revoked already it sets the reply and makes no event;
// otherwise the reply is made from its event.
func decideRevokeKey(st *State, env journal.Env, actor rpc.Actor, keyID string) (
	journal.Decision[*identityv1.RevokeKeyResponse], error,
) {
	var d journal.Decision[*identityv1.RevokeKeyResponse]
	r := st.keys[keyID]
	switch {
	case r == nil, administers(actor, r.key.GetNamespace()) != nil:
		return d, noKey(keyID)
	case r.key.GetRevokedAt() != nil:
		d.Reply = &identityv1.RevokeKeyResponse{Key: r.seen(env.Now)}
		return d, nil
	}
	if err := mayIssue(actor, r.key.GetRole()); err != nil {
		return d, err
	}
	k := proto.CloneOf(r.key)
	k.RevokedAt, k.RevokedBy, k.Status = timestamppb.New(env.Now), by(env.Actor),
		identityv1.KeyStatus_KEY_STATUS_REVOKED
	k.Revision++
	d.Events = []*journal.Event{{Namespace: k.GetNamespace(), Payload: &identityv1.KeyRevoked{Key: k}}}
	return d, nil
}

// noKey returns NOT_FOUND for a key.
func noKey(keyID string) error {
	return fault.NotFound.Newf("there is no key %q; `quartet key list --all` shows those there are", keyID).
		With("key_id", keyID)
}
