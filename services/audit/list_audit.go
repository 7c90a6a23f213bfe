package audit

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// readChunk is how many entries are read from the journal at once, and scanMax how many one
	// call examines at most before it returns the entries that match.
	readChunk = 100
	scanMax   = 2000
)

// ListAudit reads entries from the journal, oldest first. An admin receives the entries about its
// namespace, an admin of the installation all entries. One call examines at most
// scanMax entries, so a page may have fewer entries than requested, or none, although there are more.
func (s *Service) ListAudit(ctx context.Context, req *auditv1.ListAuditRequest) (*auditv1.ListAuditResponse, error) {
	namespace, err := admitList(ctx, req)
	if err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), page.DefaultSize)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("audit", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	at := req.GetAfter() // the number of the entry before the first that is looked at
	if from != nil {
		if at, err = strconv.ParseInt(from[0], 10, 64); err != nil || at < 0 {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
	}
	positions, _, err := plane.View(ctx, s.engine, "", func(st *State) ([]position, error) { return st.positions, nil })
	if err != nil {
		return nil, err
	}
	if req.GetSince() != nil {
		since := req.GetSince().AsTime().UnixMicro()
		first, _ := slices.BinarySearchFunc(positions, since, func(p position, t int64) int {
			return cmp.Compare(p.at, t)
		})
		at = max(at, int64(first))
	}
	end := int64(len(positions))
	if req.GetUntil() != nil {
		until := req.GetUntil().AsTime().UnixMicro()
		last, _ := slices.BinarySearchFunc(positions, until, func(p position, t int64) int {
			return cmp.Compare(p.at, t)
		})
		end = int64(last)
	}
	out := &auditv1.ListAuditResponse{LastNumber: min(at, int64(len(positions)))}
	bytes, limit := 0, min(end, at+scanMax)
	for at < limit && len(out.GetEntries()) < size {
		n := min(readChunk, limit-at)
		seqs := make([]uint64, 0, n)
		for _, p := range positions[at : at+n] {
			seqs = append(seqs, p.walSeq)
		}
		events, err := journal.ReadBack(ctx, s.engine.For(rpc.DefaultNamespace, ""), seqs)
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			p, ok := ev.Payload.(*auditv1.AuditRecorded)
			if e := p.GetEntry(); ok && matches(e, req, namespace) {
				if bytes += proto.Size(e); bytes > page.MaxBytes && len(out.GetEntries()) > 0 {
					limit = at
					break
				}
				out.Entries = append(out.Entries, e)
			}
			at++
			out.LastNumber = at
			if len(out.GetEntries()) == size {
				break
			}
		}
	}
	if at < end {
		out.NextPageToken = page.Token("audit", strconv.FormatInt(at, 10))
	}
	return out, nil
}

// admitList checks the request, and returns the namespace whose entries the caller
// receives; "" means all namespaces.
func admitList(ctx context.Context, req *auditv1.ListAuditRequest) (string, error) {
	actor := rpc.ActorFrom(ctx)
	if req.GetNamespace() != "" {
		if err := fault.Name("namespace", req.GetNamespace()); err != nil {
			return "", err
		}
		if req.GetNamespace() != actor.Namespace && !actor.Has(rpc.RoleInstallationAdmin) {
			return "", fault.PermissionDenied.Newf("an admin of namespace %s does not administer namespace %s; an "+
				"installation_admin does", actor.Namespace, req.GetNamespace()).
				With("namespace", req.GetNamespace()).With("role", actor.Role)
		}
	}
	for name, t := range map[string]interface{ CheckValid() error }{"since": req.GetSince(), "until": req.GetUntil()} {
		if (name == "since" && req.GetSince() != nil || name == "until" && req.GetUntil() != nil) &&
			t.CheckValid() != nil {
			return "", fault.Invalid(name, "", "must be a time")
		}
	}
	if req.GetAfter() < 0 {
		return "", fault.Invalid("after", strconv.FormatInt(req.GetAfter(), 10), "must not be negative")
	}
	if err := fault.First(
		fault.TextBytes("principal", req.GetPrincipal(), maxTarget, false), fault.TextBytes("key_id", req.GetKeyId(),
			maxTarget, false),
		fault.TextBytes("method", req.GetMethod(), maxTarget, false),
	); err != nil {
		return "", err
	}
	if req.GetNamespace() == "" && !actor.Has(rpc.RoleInstallationAdmin) {
		return actor.Namespace, nil
	}
	return req.GetNamespace(), nil
}

// matches reports whether an entry is about namespace, where "" means any, and passes the filters of req
// other than its times.
func matches(e *auditv1.AuditEntry, req *auditv1.ListAuditRequest, namespace string) bool {
	switch {
	case namespace != "" && e.GetTargetNamespace() != namespace:
	case req.GetPrincipal() != "" && e.GetPrincipal() != req.GetPrincipal():
	case req.GetKeyId() != "" && e.GetKeyId() != req.GetKeyId() && e.GetTarget()["key_id"] != req.GetKeyId():
	case req.GetMethod() != "" && !strings.HasSuffix(e.GetMethod(), req.GetMethod()):
	default:
		return true
	}
	return false
}
