// Package waits reads the waits of an agent from the waiting plane. An agent may have any number of intents, so
// a wait that matters may be on any page.
package waits

import (
	"context"

	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// PageSize is the number of waits that one call reads, which is the most it may.
const PageSize = 500

// Lister is the part of the waiting plane that All calls.
type Lister interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
}

// All returns what all pages of a request have, in one response with the revision of the last page. It sets the page
// of req. If a call fails, All returns its error and no response.
func All(ctx context.Context, from Lister, req *waitingv1.ListWaitsRequest) (*waitingv1.ListWaitsResponse, error) {
	all := &waitingv1.ListWaitsResponse{}
	for req.PageSize, req.PageToken = PageSize, ""; ; {
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
