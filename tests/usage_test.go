package tests

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
	"quartet/tests/proc"
)

// TestI18_UsageOfANamespace: an admin reads the quotas of its namespace and what it uses of them, also at a process
// without the planes, and no others.
func TestI18_UsageOfANamespace(t *testing.T) {
	planes, door := twoDoorsWith(t, func(cfg *app.Config) {
		cfg.NamespaceQuotas = map[string]string{
			"acme.agents": "7",
		}
	})
	_, admin := planes.key(t, &identityv1.CreateKeyRequest{
		Name: "a", Namespace: "acme", Role: identityv1.Role_ROLE_ADMIN,
	})
	_, operator := planes.key(t, &identityv1.CreateKeyRequest{
		Name: "o", Namespace: "acme", Role: identityv1.Role_ROLE_OPERATOR,
	})
	for _, agent := range []string{"one", "two"} {
		require.Equal(t, http.StatusOK, door.rest(t, admin, http.MethodPost, "/v1/agents", `{"agentId":"`+agent+
			`","preset":"public_named"}`).status)
		for i := range 3 {
			require.Equal(t, http.StatusOK, door.rest(t, admin, http.MethodPost, "/v1/agents/"+agent+"/work-items",
				`{"objective":"o`+strconv.Itoa(i)+`"}`).status)
		}
	}
	_, installation := planes.key(t, &identityv1.CreateKeyRequest{
		Name: "root", Role: identityv1.Role_ROLE_INSTALLATION_ADMIN,
	})
	require.Equal(t, http.StatusOK, door.rest(t, installation, http.MethodPost, "/v1/agents",
		`{"agentId":"other","preset":"public_named"}`).status)
	used := func(token, path string) map[string][2]string {
		got := door.rest(t, token, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, got.status, got.body)
		var resp struct {
			Namespace string
			Quotas    []struct{ Kind, Limit, Value string }
		}
		require.NoError(t, json.Unmarshal([]byte(got.body), &resp))
		out := map[string][2]string{"namespace": {resp.Namespace}}
		for _, q := range resp.Quotas {
			out[q.Kind] = [2]string{q.Value, q.Limit}
		}
		return out
	}
	for _, got := range []map[string][2]string{
		used(admin, "/v1/usage"),
		used(installation, "/v1/usage?namespace=acme"),
	} {
		require.Equal(t, [2]string{"acme"}, got["namespace"])
		require.Equal(t, [2]string{"2", "7"}, got["agents"])
		require.Equal(t, "6", got["open-items"][0])
		require.Equal(t, "1", got["mib"][0])
		require.Equal(t, [2]string{"", "50000"}, got["requests"])
		require.Len(t, got, 8)
	}
	require.Equal(t, "1", used(installation, "/v1/usage")["agents"][0])
	require.Equal(t, http.StatusForbidden, door.rest(t, admin, http.MethodGet, "/v1/usage?namespace=default", "").
		status)

	// Who holds how much, for an admin of the installation.
	all := door.rest(t, installation, http.MethodGet, "/v1/usage?all_namespaces=true", "")
	require.Equal(t, http.StatusOK, all.status, all.body)
	var resp struct {
		Namespaces     []struct{ Namespace, Agents, OpenItems, Bytes string }
		NamespaceCount int
	}
	require.NoError(t, json.Unmarshal([]byte(all.body), &resp))
	require.GreaterOrEqual(t, resp.NamespaceCount, 2)
	require.Len(t, resp.Namespaces, resp.NamespaceCount)
	require.Equal(t, "acme", resp.Namespaces[0].Namespace, "it has written most")
	require.Equal(t, "2", resp.Namespaces[0].Agents)
	require.Equal(t, "6", resp.Namespaces[0].OpenItems)
	written := func(i int) int {
		return must.Value(strconv.Atoi(resp.Namespaces[i].Bytes))(t)
	}
	require.Greater(t, written(0), written(1))
	require.Equal(t, http.StatusForbidden, door.rest(t, admin, http.MethodGet, "/v1/usage?all_namespaces=true", "").
		status)
	require.Equal(t, http.StatusBadRequest, door.rest(t, installation, http.MethodGet,
		"/v1/usage?all_namespaces=true&namespace=acme", "").status)
	require.Equal(t, http.StatusForbidden, door.rest(t, operator, http.MethodGet, "/v1/usage", "").status)
}

// TestI19_ExportOfANamespace: the real command writes all that a namespace has, nothing of another one, and no secret;
// it changes nothing that exists.
func TestI19_ExportOfANamespace(t *testing.T) {
	proc.Long(t)
	h := newHouse(t, nil)
	self, other := newTenant(t, h, "acme"), newTenant(t, h, "globex")
	admin := self.tokens["admin"]
	large := strings.Repeat("0123456789", 250_000)
	require.Equal(t, http.StatusOK, h.rest(t, admin, http.MethodPut, "/v1/agents/"+shared+"/home/file",
		`{"path":"a/b/large.txt","text":"`+large+`"}`).status)
	binary, dir := binary(t), filepath.Join(t.TempDir(), "out")
	export := func(token string) (string, error) {
		cmd := exec.CommandContext(soon(t), binary, "--address", h.cfg.GRPCAddr, "export", dir, "-o", "json")
		cmd.Env = append(os.Environ(), "QUARTET_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := export(self.tokens["operator"])
	require.Error(t, err, "an operator is no admin")
	require.Contains(t, out, "is not complete")
	require.NoError(t, os.RemoveAll(dir))
	out, err = export(admin)
	require.NoError(t, err, out)
	var found map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Equal(t, "acme", found["namespace"])
	read := func(path string) string {
		return string(must.Value(os.ReadFile(filepath.Join(dir, path)))(t))
	}
	require.Equal(t, large, read("homes/"+shared+"/a/b/large.txt"))
	require.Equal(t, "file "+self.mark, read("homes/"+self.own()+"/notes.md"))
	require.Contains(t, read("boards/"+shared+"/wal-"+shared+".wal.jsonl"), "step "+self.mark)
	require.Equal(t, len(self.tokens)-2, strings.Count(read("keys.ndjson"), "\n"),
		"a line for each key; two tokens are of runs")
	require.Equal(t, 2, strings.Count(read("agents.ndjson"), "\n"))
	require.InDelta(t, found["events"], strings.Count(read("events.ndjson"), "\n"), 0)
	printed := must.Value(filepath.Glob(filepath.Join(dir, "output", shared, "*.txt")))(t)
	require.Len(t, printed, 1)
	require.Contains(t, string(must.Value(os.ReadFile(printed[0]))(t)), "output "+self.mark)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw := must.Value(os.ReadFile(path))(t)
		require.NotContains(t, string(raw), other.mark, path)
		for _, token := range self.tokens {
			require.NotContains(t, string(raw), token, path)
		}
		return nil
	}))
	out, err = export(admin)
	require.Error(t, err)
	require.Contains(t, out, "exists; name a new directory")
}
