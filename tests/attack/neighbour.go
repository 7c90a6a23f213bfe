package attack

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// NewTenant creates what a hostile tenant has: its keys, an agent and a trigger. admin is the credential of the
// installation's admin.
func NewTenant(ctx context.Context, grpcAddr, httpAddr, admin string) (*Tenant, error) {
	t := &Tenant{GRPC: grpcAddr, HTTP: httpAddr, Keys: map[string]string{}}
	for _, role := range []identityv1.Role{
		identityv1.Role_ROLE_OPERATOR, identityv1.Role_ROLE_RUNNER,
		identityv1.Role_ROLE_WORKER, identityv1.Role_ROLE_INTEGRATION,
	} {
		secret, err := key(ctx, grpcAddr, admin, Mallory, role)
		if err != nil {
			return nil, err
		}
		t.Keys[strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))] = secret
	}
	op, err := client.Dial(grpcAddr, client.WithToken(t.Keys["operator"]))
	if err != nil {
		return nil, err
	}
	defer func() { _ = op.Close() }()
	if _, err := op.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: Mallory, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}); err != nil {
		return nil, err
	}
	trigger, err := op.Waiting.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
		AgentId: Mallory, DeliveryMode: waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL,
	})
	if err != nil {
		return nil, err
	}
	t.Trigger = "/v1/triggers/" + trigger.GetToken()
	return t, nil
}

// key creates an API key and returns its secret.
func key(ctx context.Context, grpcAddr, admin, namespace string, role identityv1.Role) (string, error) {
	c, err := client.Dial(grpcAddr, client.WithToken(admin))
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	resp, err := identityv1.NewIdentityServiceClient(c.Conn()).CreateKey(ctx, &identityv1.CreateKeyRequest{
		Name: strings.ToLower(role.String()), Namespace: namespace, Role: role,
	})
	return resp.GetSecret(), err
}

// Neighbour is a healthy tenant of a server that is attacked: one caller that updates an item.
type Neighbour struct {
	client  *client.Client
	item    string
	updates int
}

// NewNeighbour creates a tenant with an agent and an item.
func NewNeighbour(ctx context.Context, grpcAddr, admin string) (*Neighbour, error) {
	secret, err := key(ctx, grpcAddr, admin, "acme", identityv1.Role_ROLE_OPERATOR)
	if err != nil {
		return nil, err
	}
	n := &Neighbour{}
	if n.client, err = client.Dial(grpcAddr, client.WithToken(secret)); err != nil {
		return nil, err
	}
	if _, err = n.client.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}); err == nil {
		var made *workv1.CreateWorkItemResponse
		made, err = n.client.Work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: "keeper", Objective: "to go on",
		})
		n.item = made.GetWorkItem().GetWorkItemId()
	}
	if err != nil {
		return nil, errors.Join(err, n.client.Close())
	}
	return n, nil
}

// Update updates the item.
func (n *Neighbour) Update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	n.updates++
	objective := "to go on " + strconv.Itoa(n.updates)
	_, err := n.client.Work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: n.item,
		Objective: &objective,
	}, grpc.WaitForReady(true))
	return err
}

// Close ends its connection.
func (n *Neighbour) Close() error { return n.client.Close() }
