package identity

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// GetKey returns a key, without its secret. An admin of a namespace gets NOT_FOUND for a key of another
// namespace.
func (s *Service) GetKey(ctx context.Context, req *identityv1.GetKeyRequest) (*identityv1.GetKeyResponse, error) {
	if err := fault.ID("key_id", req.GetKeyId(), keyPrefix); err != nil {
		return nil, err
	}
	k, _, err := plane.View(ctx, s.engine, "", func(st *State) (*identityv1.Key, error) {
		if r := st.keys[req.GetKeyId()]; r != nil && administers(rpc.ActorFrom(ctx), r.key.GetNamespace()) == nil {
			return r.seen(s.deps.Clock.Now()), nil
		}
		return nil, noKey(req.GetKeyId())
	})
	return &identityv1.GetKeyResponse{Key: k}, err
}

// ListKeys returns keys in order of creation (SPEC X9), of the namespace that the request
// names, otherwise of all that the caller administers. Keys that have ended are left out unless include_ended is set.
func (s *Service) ListKeys(ctx context.Context, req *identityv1.ListKeysRequest) (*identityv1.ListKeysResponse, error) {
	if req.GetNamespace() != "" {
		if err := fault.First(fault.Name("namespace", req.GetNamespace()),
			administers(rpc.ActorFrom(ctx), req.GetNamespace())); err != nil {
			return nil, err
		}
	}
	namespace := cmp.Or(req.GetNamespace(), scopeOf(rpc.ActorFrom(ctx)))
	list, err := page.Read("keys", req)
	if err != nil {
		return nil, err
	}
	out, _, err := plane.View(ctx, s.engine, "", func(st *State) (*identityv1.ListKeysResponse, error) {
		out := &identityv1.ListKeysResponse{}
		now := s.deps.Clock.Now()
		st.order.AscendGreaterOrEqual(list.After, func(id string) bool {
			if id == list.After {
				return true
			}
			k := st.keys[id].seen(now)
			if namespace != "" && k.GetNamespace() != namespace ||
				!req.GetIncludeEnded() && k.GetStatus() != identityv1.KeyStatus_KEY_STATUS_ACTIVE {
				return true
			}
			if len(out.GetKeys()) == list.Size {
				out.NextPageToken = list.Next(out.GetKeys()[list.Size-1].GetKeyId())
				return false
			}
			out.Keys = append(out.Keys, k)
			return true
		})
		return out, nil
	})
	return out, err
}

// WhoAmI returns the actor of the caller's credential.
func (s *Service) WhoAmI(ctx context.Context, _ *identityv1.WhoAmIRequest) (*identityv1.WhoAmIResponse, error) {
	a := rpc.ActorFrom(ctx)
	if a.Role == "" {
		return nil, fault.Unauthenticated.New("the call has no actor; send a credential")
	}
	return &identityv1.WhoAmIResponse{
		Namespace: a.Namespace, Principal: a.Principal, Role: roleOf(a.Role), AgentId: a.AgentID, RunId: a.RunID,
		AgentIds: a.Agents.List(), Tools: a.Tools.List(),
		ServerTime: timestamppb.New(s.deps.Clock.Now()), ServerVersion: s.deps.Version,
	}, nil
}
