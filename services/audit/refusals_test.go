package audit

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/rpc"
)

// counter is a plane that only counts entries.
type counter struct {
	auditv1.AuditServiceClient
	entries int64
}

func (c *counter) RecordAudit(_ context.Context, req *auditv1.RecordAuditRequest, _ ...grpc.CallOption) (
	*auditv1.RecordAuditResponse, error,
) {
	c.entries += int64(len(req.GetEntries()))
	return &auditv1.RecordAuditResponse{FirstNumber: c.entries}, nil
}

// TestI16_RecordedCallsHaveARate at, below and above it: another namespace is not refused for it, and calls
// that are not recorded have none.
func TestI16_RecordedCallsHaveARate(t *testing.T) {
	plane := &counter{}
	r := NewRecorder(RecorderConfig{Client: plane})
	call := func(namespace, method string) error {
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: namespace, Principal: "p", Role: rpc.RoleOperator})
		_, err := r.Unary(ctx, method, &agentv1.PauseAgentRequest{AgentId: "a"},
			func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
	const pause, get = agentv1.AgentService_PauseAgent_FullMethodName, agentv1.AgentService_GetAgent_FullMethodName
	made := 0
	for ; made < 3*callsAtOnce; made++ { // some are added meanwhile
		err := call("acme", pause)
		if err != nil {
			require.ErrorIs(t, err, fault.RateLimited)
			require.NotZero(t, fault.From(err).RetryAfter())
			break
		}
	}
	require.GreaterOrEqual(t, made, callsAtOnce)
	require.Less(t, made, 3*callsAtOnce)
	require.Equal(t, int64(2*made), plane.entries)
	require.NoError(t, call("zeta", pause))
	require.NoError(t, call("acme", get))
}

// TestI16_ManySources at, below and above the limit: those with the most have an entry each, and the others one
// together; nothing is lost of the sum.
func TestI16_ManySources(t *testing.T) {
	for _, n := range []int{sourcesRecorded - 1, sourcesRecorded, sourcesRecorded + 1, 3000} {
		counted, sum := map[refusal]int64{}, int64(0)
		for i := range n {
			counted[refusal{7, fmt.Sprint(i)}] = int64(i + 1)
			sum += int64(i + 1)
		}
		entries := refusals(counted)
		require.Len(t, entries, min(n, sourcesRecorded+1))
		require.Equal(t, fmt.Sprint(n-1), entries[0].GetSource())
		for _, e := range entries {
			require.Equal(t, int64(7*60), e.GetMinute().GetSeconds())
			sum -= e.GetCount()
		}
		require.Zero(t, sum)
		require.Equal(t, n > sourcesRecorded, entries[len(entries)-1].GetSource() == otherSources)
	}
}

// TestI16_SourcesAreBounded at, below and above the number of sources that are counted separately.
func TestI16_SourcesAreBounded(t *testing.T) {
	r := NewRecorder(RecorderConfig{})
	for i := range sourcesKept {
		r.count(fmt.Sprint(i))
		require.Len(t, r.refused, i+1)
	}
	for i := range 3 {
		r.count(fmt.Sprint("more", i))
	}
	r.count("0")
	require.LessOrEqual(t, len(r.refused), sourcesKept+2) // two minutes may have others
	sum := int64(0)
	for _, n := range r.refused {
		sum += n
	}
	require.Equal(t, int64(sourcesKept+4), sum)
}
