package projection

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
)

// InheritedContext renders the view of the work of parent k with which a forked child starts
// (SPEC A10). It shows the item of the parent's open turn if the caller acts in a run, otherwise
// focus, and the other items that prompt.Admit selects. It reads as the parent and stores nothing: the
// caller stores the text with the delegation, so that a child that is created late, or after a crash,
// starts with the same view.
func (s *Service) InheritedContext(ctx context.Context, k plane.Key, focus, message string) (string, error) {
	runID := rpc.ActorFrom(ctx).RunID
	ctx = rpc.WithActor(ctx, rpc.Actor{
		Namespace: k.Namespace, Principal: access.Principal(k), Role: rpc.RoleAgent,
		AgentID: k.ID,
	})
	type found struct {
		item    string
		reports []*agentv1.Delegation
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		f := found{item: focus}
		if a.OpenTurn != nil && runID != "" {
			f.item = a.OpenTurn.Record.GetWorkItemId()
		}
		for _, d := range slices.Backward(a.Delegations) {
			if !state.IsOpen(d.Record) && f.item != "" && d.Record.GetParentWorkItemId() == f.item &&
				len(f.reports) < prompt.ForkReports {
				f.reports = append(f.reports, d.Record)
			}
		}
		return f, nil
	})
	if err != nil {
		return "", err
	}
	in := prompt.Fork{Message: message, Reports: f.reports}
	if f.item != "" {
		if in.Current, err = s.itemOf(ctx, k, f.item); err != nil {
			return "", err
		}
		if in.Trace, _, _, err = s.itemHistory(ctx, k, f.item); err != nil {
			return "", err
		}
	}
	for _, a := range prompt.Admit(message, in.Current) {
		it, err := s.itemOf(ctx, k, a.ItemID)
		if err != nil {
			return "", err
		}
		if it != nil {
			in.Others = append(in.Others, it)
		}
	}
	return prompt.Inherit(in), nil
}

// itemOf reads an item of an agent. It returns nil if there is none or it is another
// agent's, since a text may name any id.
func (s *Service) itemOf(ctx context.Context, k plane.Key, itemID string) (*workv1.WorkItem, error) {
	r, err := s.deps.Work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: k.ID, WorkItemId: itemID})
	if err == nil {
		return r.GetWorkItem(), nil
	}
	switch fault.From(err).Code() {
	case codes.NotFound, codes.PermissionDenied, codes.InvalidArgument:
		return nil, nil
	}
	return nil, err
}

// addInherited adds the view with which a forked child started.
func (s *Service) addInherited(ctx context.Context, k plane.Key, p *Projection) error {
	var err error
	p.inherited, _, err = plane.View(ctx, s.engine, k.ID, func(st *state.State) (string, error) {
		if a := st.Lookup(k); a != nil {
			return a.InheritedContext, nil
		}
		return "", nil
	})
	return err
}
