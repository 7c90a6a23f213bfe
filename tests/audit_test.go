package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/proc"
)

// TestI16_TheAuditLog of two processes that callers come to: who did what, from where and with which
// key, over REST and gRPC, and what was refused. Each call is in it once.
func TestI16_TheAuditLog(t *testing.T) {
	planes, door := twoDoors(t)
	keyID, secret := planes.key(t, &identityv1.CreateKeyRequest{
		Name: "ci", Role: identityv1.Role_ROLE_OPERATOR, Namespace: "acme",
	})
	_, err := agentv1.NewAgentServiceClient(planes.conn(t, secret)).SpawnAgent(soon(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	})
	require.NoError(t, err)

	require.Equal(t, 200, door.rest(t, secret, "POST", "/v1/agents/keeper:pause", `{"request_id":"p1"}`).status)
	must.Value(agentv1.NewAgentServiceClient(planes.conn(t, secret)).ResumeAgent(soon(t), &agentv1.ResumeAgentRequest{
		AgentId: "keeper",
	}))(t)
	require.Equal(t, 403, door.rest(t, secret, "GET", "/v1/keys", "").status,
		"a role that may not call a method is refused before it is recorded")
	backup := must.Value(backupv1.NewBackupServiceClient(planes.conn(t, bootstrap)).
		ExportBackup(soon(t), &backupv1.ExportBackupRequest{}))(t)
	for err == nil {
		_, err = backup.Recv()
	}
	for range 7 {
		require.Equal(t, 401, door.rest(t, "qk_junk", "GET", "/v1/whoami", "").status)
	}
	stop(t, door) // which records what it has counted

	list := must.Value(auditv1.NewAuditServiceClient(planes.conn(t, bootstrap)).
		ListAudit(soon(t), &auditv1.ListAuditRequest{}))(t)
	type entry struct{ method, who, key, source, about, code string }
	var got []entry
	for _, e := range list.GetEntries() {
		about := e.GetTarget()["agent_id"] + e.GetTarget()["key_id"]
		switch e.GetKind() {
		case auditv1.AuditKind_AUDIT_KIND_ATTEMPT:
			require.Empty(t, e.GetCode())
			continue
		case auditv1.AuditKind_AUDIT_KIND_REFUSED_LOGINS:
			require.Equal(t, int64(7), e.GetCount())
		}
		got = append(got, entry{e.GetMethod()[strings.Index(e.GetMethod(), "/")+1:], e.GetNamespace() + "/" +
			e.GetPrincipal(), e.GetKeyId(), e.GetSource(), about, e.GetCode()})
	}
	require.Equal(t, []entry{
		{"CreateKey", "default/bootstrap", "", "127.0.0.1", keyID, "OK"},
		{"PauseAgent", "acme/ci", keyID, "127.0.0.1", "keeper", "OK"},
		{"ResumeAgent", "acme/ci", keyID, "127.0.0.1", "keeper", "OK"},
		{"ExportBackup", "default/bootstrap", "", "127.0.0.1", "", "OK"},
		{"", "/", "", "127.0.0.1", "", "Unauthenticated"},
	}, got)
}

// TestI16_TheCommand of the real binary shows the log, follows it, and checks its chain, also after a kill.
func TestI16_TheCommand(t *testing.T) {
	bin, dir := binary(t), t.TempDir()
	q := must.Value(proc.NewQuartet(bin, dir, "", "--auth", "required"))(t)
	ctx := soon(t)
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, bin, append(args, "--address", q.GRPC)...)
		cmd.Env = append(os.Environ(), "QUARTET_DATA_DIR="+dir)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return strings.TrimSpace(out.String()) + strings.TrimSpace(errs.String()), err
	}
	out, err := run("key", "create", "root", "--role", "installation_admin", "--bootstrap")
	require.NoError(t, err, out)
	secret := filepath.Join(dir, "root")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Fields(out)[0][:len("qk_")+26+1+64]), 0o600))
	t.Setenv("QUARTET_TOKEN_FILE", secret)
	require.NoError(t, q.Kill())
	require.NoError(t, q.Start(ctx))

	out, err = run("audit", "--method", "CreateKey", "--since", "1h")
	require.NoError(t, err, out)
	require.Regexp(t,
		`(?m)^1 .* default/bootstrap +127\.0\.0\.1 +CreateKey +begins +name=root role=installation_admin$`, out)
	require.Regexp(t,
		`(?m)^2 .* default/bootstrap +127\.0\.0\.1 +CreateKey +OK +installation_key_id=\w+ key_id=key_\w+ name=root namespace=default role=installation_admin$`, out)
	out, err = run("audit", "-o", "json", "--method", "ListAudit")
	require.NoError(t, err, out)
	for line := range strings.Lines(out) {
		var e struct{ Method, Principal string }
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		require.Equal(t, "root", e.Principal)
	}
	out, err = run("audit", "--verify")
	require.NoError(t, err, out)
	require.Regexp(t, `^\d+ entries are one chain\. Last hash: [0-9a-f]{64}$`, out)
	out, err = run("audit", "--verify", "--since", "1h")
	require.Error(t, err)
	require.Contains(t, out, "--verify reads all entries")
}
