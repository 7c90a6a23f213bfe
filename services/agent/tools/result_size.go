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
	// maxResult is how large one result may be as the journal writes it: an event
	// has 3 MiB at most (SPEC X8), and a control character takes six bytes there.
	MaxResult = 2 << 20
	// maxResults bounds those of a round together: the answer has to fit into what
	// clients take, which is 16 MiB.
	MaxResults = 8 << 20
	// escaped is how much longer a text may become in the journal.
	Escaped = 6
)

// fit makes a result one that can be kept and answered. Every call has exactly
// one result (SPEC C4): a round whose result could not be kept could neither end
// nor be followed by another. taken is what the round's results have so far; it
// gives what they have with this one.
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
	if out.Mutated { // it happened, and that is what counts
		out.Result.SummaryText += ", but its result was too large to be kept"
		out.Result.Result = &structpb.Struct{Fields: map[string]*structpb.Value{
			"dropped": structpb.NewStringValue(fmt.Sprintf("the result had %d bytes where %d were left; the call was done, do not repeat it", size, most)),
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
