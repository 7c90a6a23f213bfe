package identity

import (
	"cmp"
	"context"
	"slices"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// ListProcesses returns the server processes that run, as they reported themselves, and examines the installation if
// that is requested.
func (s *Service) ListProcesses(ctx context.Context, req *identityv1.ListProcessesRequest) (
	*identityv1.ListProcessesResponse, error,
) {
	resp, err := s.deps.Processes(ctx, req.GetExamine())
	if err != nil {
		return nil, fault.Storage.Newf("the processes are not known at the moment: %s; try again", err)
	}
	slices.SortFunc(resp.GetProcesses(), func(a, b *identityv1.Process) int {
		return cmp.Or(cmp.Compare(a.GetHost(), b.GetHost()), cmp.Compare(a.GetProcessId(), b.GetProcessId()))
	})
	return resp, nil
}
