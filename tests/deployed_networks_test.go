//go:build deployed

package tests

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// TestX15_ContainersReachWhatTheyNeed tries, from a container in each network of the deployment, the ports of the
// others: a worker reaches the gateway and nothing else, and NATS's monitoring, which asks for no credential, is
// reached by the services and by nobody else who was not put beside it.
func TestX15_ContainersReachWhatTheyNeed(t *testing.T) {
	c := &compose{t: t, dir: *deployedDir}
	ports := []string{
		"gateway 7481", "gateway 7480", "agent 7481", "agent 7480", "nats-1 4222", "nats-1 6222",
		"nats-1 8222", "nats-1.monitoring 8222",
	}
	for network, reached := range map[string][]string{
		"front":   {"gateway 7481", "gateway 7480"},
		"default": {"gateway 7481", "gateway 7480", "agent 7481"}, // only the gateway serves REST
		// The services are beside NATS, and demand the credentials that they demand elsewhere.
		"nats": {"gateway 7481", "gateway 7480", "agent 7481", "nats-1 4222", "nats-1 6222"},
		// The services read the settings of the NATS servers there.
		"monitoring": {
			"gateway 7481", "gateway 7480", "agent 7481", "nats-1 4222", "nats-1 6222", "nats-1 8222",
			"nats-1.monitoring 8222",
		},
	} {
		script := ""
		for _, port := range ports {
			script += "echo x | nc -w 2 " + port + " >/dev/null 2>&1 && echo " + port + "\n" // which every port closes
		}
		out := c.run("docker", "run", "--rm", "--network", os.Getenv("COMPOSE_PROJECT_NAME")+"_"+network,
			"--entrypoint", "/bin/sh", "quartet-worker:"+os.Getenv("QUARTET_TAG"), "-c", script+"true")
		require.Equal(t, reached, strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), network)
	}
}

// TestX15_VerifyReadsEachReplica: the command of the guide reads the replicas of all journals on each NATS server,
// beside the services that run.
func TestX15_VerifyReadsEachReplica(t *testing.T) {
	c := &compose{t: t, dir: *deployedDir}
	out := c.run("docker", "compose", "run", "--rm", "-T", "gateway", "verify")
	for _, replica := range []string{
		"work/5 on nats-1", "work/5 on nats-2", "work/5 on nats-3",
		"identity/0 on nats-1",
	} {
		require.Contains(t, out, replica)
	}
	require.Contains(t, out, "damaged: 0")
}

// TestX15_ACertificateForEachService: every service and NATS server has a certificate of its own, with its name and no
// other's; what makes them has no capability, no network, and is not root.
func TestX15_ACertificateForEachService(t *testing.T) {
	c := &compose{t: t, dir: *deployedDir}
	names := append(slices.Clone(planeServices), "nats-1", "nats-2", "nats-3")
	keys := map[string]string{}
	for _, name := range names {
		to := filepath.Join(t.TempDir(), "tls.pem")
		container := c.containers(name)[0]
		c.run("docker", "cp", container+":/tls/tls.pem", to)
		text := must.Value(os.ReadFile(to))(t)
		block, _ := pem.Decode(text)
		require.NotNil(t, block)
		cert := must.Value(x509.ParseCertificate(block.Bytes))(t)
		for _, other := range names {
			require.Equal(t, other == name, cert.VerifyHostname(other) == nil, "the name %s in the certificate of %s",
				other, name)
		}
		require.Empty(t, keys[string(cert.RawSubjectPublicKeyInfo)], name)
		keys[string(cert.RawSubjectPublicKeyInfo)] = name
		// Neither the authority's key nor another's certificate is mounted.
		var mounts []struct{ Destination string }
		require.NoError(t, json.Unmarshal([]byte(c.run("docker", "inspect", "--format", "{{json .Mounts}}", container)),
			&mounts))
		for _, m := range mounts {
			require.Contains(t, []string{"/tls", "/keys", "/data", "/archive", "/etc/nats.conf"}, m.Destination, name)
		}
	}
	setup := strings.Fields(c.run("docker", "compose", "ps", "-a", "-q", "setup"))
	require.Len(t, setup, 1)
	require.Equal(t, "65532:65532 [] [ALL] none true", c.run("docker", "inspect", "--format",
		"{{.Config.User}} {{.HostConfig.CapAdd}} {{.HostConfig.CapDrop}} {{.HostConfig.NetworkMode}} "+
			"{{.HostConfig.ReadonlyRootfs}}", setup[0]))
	out, err := exec.CommandContext(t.Context(), "docker", "exec", c.containers("gateway")[0], "/quartet", "certs",
		"show", "/tls").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "gateway")
}
