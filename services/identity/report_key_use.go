package identity

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane"
)

// maxUses is how many uses one ReportKeyUse may have.
const maxUses = 1000

// ReportKeyUse records when keys were used last. Uses that are not later than the recorded one
// write nothing, so several processes may report the same key. Uses of unknown keys, and times
// in the future, are ignored.
func (s *Service) ReportKeyUse(ctx context.Context, req *identityv1.ReportKeyUseRequest) (
	*identityv1.ReportKeyUseResponse, error,
) {
	if err := fault.Entries("uses", len(req.GetUses()), maxUses); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *identityv1.ReportKeyUseResponse]{
		Method: "ReportKeyUse", Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*identityv1.ReportKeyUseResponse], error) {
			return decideReportKeyUse(st, env, req), nil
		},
		Answer: func([]*journal.Event) (*identityv1.ReportKeyUseResponse, error) {
			return &identityv1.ReportKeyUseResponse{}, nil
		},
	})
}

// decideReportKeyUse is the rule of ReportKeyUse. Times are recorded in units of useGrain.
func decideReportKeyUse(st *State, env journal.Env,
	req *identityv1.ReportKeyUseRequest,
) journal.Decision[*identityv1.ReportKeyUseResponse] {
	d := journal.Decision[*identityv1.ReportKeyUseResponse]{Reply: &identityv1.ReportKeyUseResponse{}}
	reported := map[string]bool{}
	for _, u := range req.GetUses() {
		r := st.keys[u.GetKeyId()]
		at := u.GetUsedAt().AsTime().Truncate(useGrain)
		if r == nil || reported[u.GetKeyId()] || at.After(env.Now) || !at.After(r.key.GetLastUsedAt().AsTime()) &&
			r.key.GetLastUsedAt() != nil {
			continue
		}
		reported[u.GetKeyId()] = true
		d.Events = append(d.Events, &journal.Event{
			Namespace: r.key.GetNamespace(), Payload: &identityv1.KeyUsed{
				KeyId:  u.GetKeyId(),
				UsedAt: timestamppb.New(at),
			},
		})
	}
	return d
}

// grainTime returns the time of a number of useGrains since 1970.
func grainTime(grain int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: grain * int64(useGrain/time.Second)}
}
