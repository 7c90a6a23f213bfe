package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// TestX2_KeysOfOneName: two keys may have one name. Their requests are told apart, also after
// a restart, and events name the key.
func TestX2_KeysOfOneName(t *testing.T) {
	h := newHouse(t, nil)
	type program struct{ keyID, secret string }
	var programs []program
	for range 2 {
		id, secret := h.key(t, &identityv1.CreateKeyRequest{Name: "ci", Role: identityv1.Role_ROLE_OPERATOR})
		programs = append(programs, program{id, secret})
	}
	agents := agentv1.NewAgentServiceClient(h.conn(t, programs[0].secret))
	must.Value(agents.SpawnAgent(soon(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	enqueue := func(p program, text string) string {
		return must.Value(agentv1.NewAgentServiceClient(h.conn(t, p.secret)).
			EnqueueMessage(soon(t), &agentv1.EnqueueMessageRequest{
				AgentId: "keeper", Text: text, RequestId: "build-7",
			}))(t).GetMessage().GetMessageId()
	}
	first, second := enqueue(programs[0], "same"), enqueue(programs[1], "same")
	require.NotEqual(t, first, second, "a message of the second program was taken for a repetition of the first")
	require.Equal(t, first, enqueue(programs[0], "same"))
	stop(t, h)
	h.app = startApp(t, h.cfg)
	require.Equal(t, first, enqueue(programs[0], "same"))
	require.Equal(t, second, enqueue(programs[1], "same"))

	events := h.rest(t, programs[0].secret, "GET", "/v1/events?from_start=true&stop_at_end=true", "")
	require.Equal(t, 200, events.status, events.body)
	for _, p := range programs {
		require.Contains(t, events.body, p.keyID)
	}
}

// TestI15_AnAdminOfANamespace administers it and nothing else, whatever it asks for.
func TestI15_AnAdminOfANamespace(t *testing.T) {
	h := newHouse(t, nil)
	const operator, admin, installation = identityv1.Role_ROLE_OPERATOR, identityv1.Role_ROLE_ADMIN,
		identityv1.Role_ROLE_INSTALLATION_ADMIN
	rootID, root := h.key(t, &identityv1.CreateKeyRequest{Name: "root", Role: installation, Namespace: "acme"})
	foreignID, foreign := h.key(t, &identityv1.CreateKeyRequest{Name: "other", Role: operator})
	_, secret := h.key(t, &identityv1.CreateKeyRequest{Name: "own", Role: admin, Namespace: "acme"})
	own := h.identity(t, secret)

	for _, role := range []identityv1.Role{
		admin, operator, identityv1.Role_ROLE_RUNNER, identityv1.Role_ROLE_WORKER,
		identityv1.Role_ROLE_INTEGRATION,
	} {
		for _, namespace := range []string{"", "acme"} {
			made := must.Value(own.CreateKey(soon(t), &identityv1.CreateKeyRequest{
				Name: "k", Role: role, Namespace: namespace,
			}))(t)
			require.Equal(t, "acme", made.GetKey().GetNamespace())
			must.Value(own.RevokeKey(soon(t), &identityv1.RevokeKeyRequest{KeyId: made.GetKey().GetKeyId()}))(t)
		}
		_, err := own.CreateKey(soon(t), &identityv1.CreateKeyRequest{Name: "k", Role: role, Namespace: "default"})
		require.ErrorIs(t, err, fault.PermissionDenied)
		require.ErrorContains(t, err, "does not administer namespace default")
	}
	for _, namespace := range []string{"", "acme", "default"} {
		must.Refuse(own.CreateKey(soon(t), &identityv1.CreateKeyRequest{
			Name: "k", Role: installation, Namespace: namespace,
		}))(t, fault.PermissionDenied, "namespace %q", namespace)
	}

	// Keys of others are not there; one of the installation's admins is, and stays.
	must.Refuse(own.GetKey(soon(t), &identityv1.GetKeyRequest{KeyId: foreignID}))(t, fault.NotFound)
	must.Refuse(own.RevokeKey(soon(t), &identityv1.RevokeKeyRequest{KeyId: foreignID}))(t, fault.NotFound)
	must.Refuse(own.RevokeKey(soon(t), &identityv1.RevokeKeyRequest{KeyId: rootID}))(t, fault.PermissionDenied)
	must.Refuse(own.ListKeys(soon(t), &identityv1.ListKeysRequest{Namespace: "default"}))(t, fault.PermissionDenied)
	listed := must.Value(own.ListKeys(soon(t), &identityv1.ListKeysRequest{IncludeEnded: true}))(t)
	require.Len(t, listed.GetKeys(), 12)
	for _, k := range listed.GetKeys() {
		require.Equal(t, "acme", k.GetNamespace())
	}
	for _, live := range []string{root, foreign} {
		must.Value(h.identity(t, live).WhoAmI(soon(t), &identityv1.WhoAmIRequest{}))(t)
	}

	// What has all namespaces is not an admin's either.
	backup := must.Value(backupv1.NewBackupServiceClient(h.conn(t, secret)).
		ExportBackup(soon(t), &backupv1.ExportBackupRequest{}))(t)
	must.Refuse(backup.Recv())(t, fault.PermissionDenied)
	must.Refuse(agentv1.NewAgentServiceClient(h.conn(t, secret)).AcquireTurn(soon(t), &agentv1.AcquireTurnRequest{
		RunnerId: "r", AllNamespaces: true,
	}))(t, fault.PermissionDenied)

	all := must.Value(h.identity(t, root).ListKeys(soon(t), &identityv1.ListKeysRequest{}))(t)
	require.Len(t, all.GetKeys(), 3)
}
