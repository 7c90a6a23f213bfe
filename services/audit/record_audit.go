package audit

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// maxEntries is how many entries one RecordAudit may have.
const maxEntries = 1000

// RecordAudit appends entries, which are durable when it returns. Only services call it.
func (s *Service) RecordAudit(ctx context.Context, req *auditv1.RecordAuditRequest) (*auditv1.RecordAuditResponse,
	error,
) {
	if err := fault.First(fault.RequestID(req.GetRequestId()),
		fault.Entries("entries", len(req.GetEntries()), maxEntries)); err != nil {
		return nil, err
	}
	if len(req.GetEntries()) == 0 {
		return nil, fault.Invalid("entries", "", "must have an entry")
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *auditv1.RecordAuditResponse]{
		Frees: true, Method: "RecordAudit", RequestID: req.GetRequestId(), Args: req,
		Actor: plane.System(rpc.DefaultNamespace),
		Decide: func(st *State, env journal.Env) (journal.Decision[*auditv1.RecordAuditResponse], error) {
			return decideRecord(st, env, req.GetEntries()), nil
		},
		Answer: journal.AnswerOf(func(p *auditv1.AuditRecorded) *auditv1.RecordAuditResponse {
			return &auditv1.RecordAuditResponse{FirstNumber: p.GetEntry().GetNumber()}
		}),
	})
}
