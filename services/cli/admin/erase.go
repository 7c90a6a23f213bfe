package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// erased is the output of `quartet erase -o json`.
type erased struct {
	Namespace     string `json:"namespace"`
	AgentsDeleted int    `json:"agentsDeleted"`
	KeysRevoked   int    `json:"keysRevoked"`
	AdminKeysLeft int    `json:"adminKeysLeft"`
}

// String returns what was done in words.
func (e erased) String() string {
	text := fmt.Sprintf("namespace %s: %s deleted, %s revoked\n", e.Namespace, terminal.Count(e.AgentsDeleted, "agent",
		"agents"), terminal.Count(e.KeysRevoked, "key", "keys"))
	if e.AdminKeysLeft > 0 {
		text += terminal.Count(e.AdminKeysLeft, "key of an admin is", "keys of admins are") +
			" left: quartet key list, quartet key revoke\n"
	}
	return text
}

// EraseCommand returns `quartet erase`.
func EraseCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "erase NAMESPACE", Short: "Delete all agents of your namespace, and revoke its keys",
		Args: input.Exactly("NAMESPACE"),
		Long: `Delete all agents of a namespace, private ones included, and revoke its keys, but for
those of admins. NAMESPACE is that of the caller, who has the role admin; it is asked
for once more, or give --yes.

What the agents had is erased from journals, their archive, snapshots, events and homes
when the server's erase-after has passed since (24 h by default), and their ids are not
used again. Names of keys and the audit log stay, and so do backups and exports. The
command may be repeated, also after it was interrupted: it passes over what is deleted.
"quartet export" makes a copy before.`,
		Example: "  quartet erase acme --token \"$(cat acme-admin.key)\"\n  quartet erase acme --yes -o json",
	}
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		progress := newProgress(cmd.ErrOrStderr())
		found := erased{Namespace: args[0]}
		err := eraseNamespace(cmd.Context(), conn, &found, progress)
		progress.end()
		if err != nil {
			return err
		}
		if s.JSON() {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(found)
		}
		p := output.New(cmd.OutOrStdout())
		p.Printf("%s", found)
		return p.Err()
	})
	return input.Confirm(cmd, "deletes all agents of namespace %s and revokes its keys permanently")
}

// eraseNamespace revokes the keys of the caller's namespace, which must be found.Namespace, but for those of admins,
// and then deletes all its agents. It counts what it does in found, also if it fails.
func eraseNamespace(ctx context.Context, conn *grpc.ClientConn, found *erased, shown *progress) error {
	identities, agents := identityv1.NewIdentityServiceClient(conn), agentv1.NewAgentServiceClient(conn)
	who, err := identities.WhoAmI(ctx, &identityv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	if who.GetNamespace() != found.Namespace {
		return exit.UsageError(fmt.Sprintf("the credential is of namespace %s, not of %s; give one of an admin there",
			who.GetNamespace(), found.Namespace))
	}
	// The keys first, so that nobody makes other agents meanwhile.
	var keys []*identityv1.Key
	if err := pages(func(token string) (string, error) {
		resp, err := identities.ListKeys(ctx, &identityv1.ListKeysRequest{
			Namespace: found.Namespace,
			PageSize:  exportPage, PageToken: token,
		})
		keys = append(keys, resp.GetKeys()...)
		return resp.GetNextPageToken(), err
	}); err != nil {
		return err
	}
	for _, key := range keys {
		if key.GetRole() == identityv1.Role_ROLE_ADMIN || key.GetRole() == identityv1.Role_ROLE_INSTALLATION_ADMIN {
			found.AdminKeysLeft++
			continue
		}
		if _, err := identities.RevokeKey(ctx, &identityv1.RevokeKeyRequest{KeyId: key.GetKeyId()}); err != nil {
			return fmt.Errorf("key %s: %w", key.GetKeyId(), err)
		}
		found.KeysRevoked++
	}
	// a deletion takes its private descendants with it, and an agent that is deleted may still have made one
	for more := true; more; {
		more = false
		if err := pages(func(token string) (string, error) {
			resp, err := agents.ListAgents(ctx, &agentv1.ListAgentsRequest{
				IncludePrivate: true, PageSize: exportPage,
				PageToken: token,
			})
			if err != nil {
				return "", err
			}
			for _, a := range resp.GetAgents() {
				if a.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_ACTIVE {
					continue
				}
				if _, err := agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{
					AgentId: a.GetAgentId(),
					Reason:  "the namespace is erased",
				}); err != nil {
					return "", fmt.Errorf("agent %s: %w", a.GetAgentId(), err)
				}
				found.AgentsDeleted++
				more = true
				shown.write(terminal.Count(found.AgentsDeleted, "agent", "agents") + " deleted")
			}
			return resp.GetNextPageToken(), nil
		}); err != nil {
			return err
		}
	}
	return nil
}
