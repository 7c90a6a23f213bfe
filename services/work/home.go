package work

import (
	"context"
	"errors"
	"io/fs"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/work/homes"
)

// fileKey names a file, for the lock that orders its writers.
type fileKey struct {
	plane.Key
	path string
}

// openHome opens an agent's home if the caller may read it or, with write set, change it. The
// agent must exist; it may be deleted if write is not set. If there is no home yet, openHome
// creates it with write set, and returns nil otherwise. The caller must call Close, also on
// nil.
func (s *Service) openHome(ctx context.Context, agentID string, write bool) (*homes.Home, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admit(actor, agentID); err != nil {
		return nil, err
	}
	if err := s.exists(ctx, plane.KeyOf(actor.Namespace, agentID)); err != nil &&
		(write || fault.From(err).Reason() != fault.AgentDeleted) {
		return nil, err
	}
	if write { // the home of a deleted agent can be read and not changed
		if _, _, err := plane.View(ctx, s.engine, agentID, func(st *State) (struct{}, error) {
			return struct{}{}, st.ownerAlive(actor.Namespace, agentID)
		}); err != nil {
			return nil, err
		}
	}
	h, err := s.homes.Open(actor.Namespace, agentID, write)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, homes.Error("", err)
	}
	return h, nil
}
