package access

import (
	"context"

	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// waitsPage is the number of waits that one call reads, which is the most it may.
const waitsPage = 500

// WaitLister is the part of the waiting plane that AllWaits calls.
type WaitLister interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
}

// AllWaits returns what all pages of a request have, in one response with the revision of the last page. It sets the
// page of req. If a call fails, AllWaits returns its error and no response.
func AllWaits(ctx context.Context, from WaitLister, req *waitingv1.ListWaitsRequest) (
	*waitingv1.ListWaitsResponse, error,
) {
	all := &waitingv1.ListWaitsResponse{}
	for req.PageSize, req.PageToken = waitsPage, ""; ; {
		r, err := from.ListWaits(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Waits, all.Revision = append(all.Waits, r.GetWaits()...), r.GetRevision()
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" {
			return all, nil
		}
	}
}
