package waiting

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// An empty list of an agent that was never made would look like good news.
func TestX5_ListsOfUnknownAgents(t *testing.T) {
	r := newRig(t)
	for name, list := range map[string]func(agentID string) error{
		"waits": func(agentID string) error {
			_, err := r.service.ListWaits(planetest.As(t.Context(), rpc.RoleOperator), &waitingv1.ListWaitsRequest{
				AgentId: agentID,
			})
			return err
		},
		"timers": func(agentID string) error {
			_, err := r.service.ListTimers(planetest.As(t.Context(), rpc.RoleOperator), &waitingv1.ListTimersRequest{
				AgentId: agentID,
			})
			return err
		},
		"triggers": func(agentID string) error {
			_, err := r.service.ListExternalTriggers(planetest.As(t.Context(), rpc.RoleOperator),
				&waitingv1.ListExternalTriggersRequest{AgentId: agentID})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, list("nobody"), fault.NotFound)
			require.NoError(t, list("new"), "one that has nothing yet")
		})
	}
}
