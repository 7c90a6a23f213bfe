package tools

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

const (
	// MaxResult bounds one result as the journal stores it: an event has at most 3 MiB
	// (SPEC X8), and a control character takes six bytes there.
	MaxResult = 2 << 20
	// MaxResults bounds the results of a round together: the response has to fit the 16
	// MiB that clients accept.
	MaxResults = 8 << 20
	// Escaped is the factor by which a text grows in the journal at most.
	Escaped = 6
)

// FitResult replaces the result in out if it is too large to be stored or returned. If the call changed
// something, the new result says that the call was done and its content dropped; if not, it is the error
// LIMIT_EXCEEDED. The result cannot be left out, since every call has exactly one (SPEC C4) and a round
// that lacks one could not end. taken is the size in bytes of the round's earlier results; FitResult
// returns that size plus the size of the result that out has in the end.
func FitResult(out *Outcome, c *agentv1.ToolCall, taken int) int {
	size := proto.Size(out.Result)
	if size*Escaped > MaxResult {
		if raw, err := pbjson.Append(nil, out.Result); err == nil {
			size = len(raw)
		}
	}
	var most int
	switch {
	case size > MaxResult:
		most = MaxResult
	case taken+size > MaxResults && size > MaxResult/64: // a small one always fits
		most = max(0, MaxResults-taken)
	default:
		return taken + size
	}
	const more = "ask for less at a time: limit, max_bytes, page_size, omit_steps"
	if out.Mutated { // the call has been executed; the result must say so
		out.Result.SummaryText += ", but its result was too large to be kept"
		if out.Result.GetError() != nil {
			out.Result.Error.Details = nil
		}
		out.Result.Result = &structpb.Struct{Fields: map[string]*structpb.Value{
			"dropped": structpb.NewStringValue(fmt.Sprintf("the result had %d bytes where %d were left; the call was "+
				"done, do not repeat it", size, most)),
		}}
	} else {
		warnings := out.Result.GetWarnings()
		out.Result = Failed(c, fault.LimitExceeded.Newf("the result has %d bytes where %d fit; %s", size, most, more).
			With("limit", fmt.Sprint(most)).With("value", fmt.Sprint(size)))
		if len(warnings) < 64 {
			out.Result.Warnings = warnings
		}
	}
	return taken + proto.Size(out.Result)
}
