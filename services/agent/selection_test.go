package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

const (
	privateChild = agentv1.Preset_PRESET_PRIVATE_CHILD
	named        = agentv1.Preset_PRESET_PUBLIC_NAMED
	boards       = agentv1.ToolFamily_TOOL_FAMILY_BOARDS
	core         = agentv1.ToolFamily_TOOL_FAMILY_CORE
)

func (r *rig) choose(req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse, error) {
	if req.GetWait() == nil {
		req.Wait = durationpb.New(0)
	}
	return r.service.AcquireTurn(r.runner(), req)
}

// A runner takes the turns of agents that are capable of what it asks for, and of
// no others (SPEC A6).
func TestA6_RunnersChooseByCapability(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "go", normal)
	child := r.delegate(r.operator(), "one", "do it").GetAgentId()
	for _, c := range []struct {
		name string
		req  *agentv1.AcquireTurnRequest
		want string // "" nobody
	}{
		{"privateChild", &agentv1.AcquireTurnRequest{Preset: privateChild}, child},
		{
			"privateChild of two", &agentv1.AcquireTurnRequest{
				Preset:   privateChild,
				AgentIds: []string{"keeper", child},
			},
			child,
		},
		{
			"not the one that is named", &agentv1.AcquireTurnRequest{
				Preset:   privateChild,
				AgentIds: []string{"keeper"},
			},
			"",
		},
		{
			"orchestrators", &agentv1.AcquireTurnRequest{ToolFamilies: []agentv1.ToolFamily{core, boards, boards}},
			"keeper",
		},
		{"a child that has boards", &agentv1.AcquireTurnRequest{
			Preset:       privateChild,
			ToolFamilies: []agentv1.ToolFamily{boards},
		}, ""},
		{"what everybody has", &agentv1.AcquireTurnRequest{
			ToolFamilies: []agentv1.ToolFamily{core},
			AgentIds:     []string{"keeper"},
		}, "keeper"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := must.Value(r.choose(c.req))(t)
			require.Equal(t, c.want, got.GetTurn().GetAgentId())
			if c.want != "" {
				r.finish(got, released)
			}
		})
	}
	for name, req := range map[string]*agentv1.AcquireTurnRequest{
		"no family": {ToolFamilies: []agentv1.ToolFamily{0}},
	} {
		must.Refuse(r.choose(req))(t, fault.InvalidArgument, name)
	}
	must.Refuse(r.service.AcquireTurn(planetest.As(t.Context(), rpc.RoleInstallationAdmin), &agentv1.AcquireTurnRequest{
		AllNamespaces: true, Preset: named,
	}))(t, fault.InvalidArgument)

	// The same request id with another choice is another request (SPEC X2).
	got := must.Value(r.choose(&agentv1.AcquireTurnRequest{RequestId: "r1", Preset: named}))(t)
	require.Equal(t, "keeper", got.GetTurn().GetAgentId())
	must.Refuse(r.choose(&agentv1.AcquireTurnRequest{RequestId: "r1", Preset: privateChild}))(t, fault.RequestIDReused)
}

// A runner with a filter is woken only for agents that it accepts, and other runners are
// woken as if it were not waiting.
func TestX13_ARunnerWithAFilterIsWoken(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	wait := func(req *agentv1.AcquireTurnRequest) <-chan *agentv1.AcquireTurnResponse {
		got := make(chan *agentv1.AcquireTurnResponse, 1)
		req.Wait = durationpb.New(50 * time.Second)
		go func() {
			resp, _ := r.service.AcquireTurn(planetest.As(context.Background(), rpc.RoleRunner), req)
			got <- resp
		}()
		return got
	}
	next := func(from <-chan *agentv1.AcquireTurnResponse) *agentv1.AcquireTurnResponse {
		select {
		case resp := <-from:
			require.NotNil(t, resp.GetTurn())
			return resp
		case <-time.After(40 * time.Second):
			require.FailNow(t, "not woken")
			return nil
		}
	}
	waiting := func(n int) {
		r.eventually(func() bool {
			return r.service.waiters.Count(plane.Key{Namespace: "acme", ID: "keeper"},
				&agentv1.Agent{Preset: privateChild}) == n
		})
	}
	forChildren := wait(&agentv1.AcquireTurnRequest{Preset: privateChild})
	waiting(1)
	forAll := wait(&agentv1.AcquireTurnRequest{})
	waiting(2)
	require.EqualValues(t, 1, r.facts("keeper").GetRunnersWaiting(),
		"a runner that would not take it does not wait for it")

	r.send("keeper", "go", normal)
	require.Equal(t, "keeper", next(forAll).GetTurn().GetAgentId(), "the one that came first wants something else")
	child := r.delegate(r.operator(), "one", "do it").GetAgentId()
	require.Equal(t, child, next(forChildren).GetTurn().GetAgentId())
}
