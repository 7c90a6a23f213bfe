package conf

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// within returns a set of some settings in an environment.
func within(environ ...string) *Set {
	var text string
	s := New(pflag.NewFlagSet("test", pflag.ContinueOnError))
	for _, name := range []string{"nats-url", "data-dir", "tls-ca-file", "addresses", "open", "auth"} {
		s.String(&text, name, "", "")
	}
	s.Secret(&text, "bootstrap-token", "")
	s.getenv = func(string) (string, bool) { return "", false }
	s.environ = func() []string { return environ }
	return s
}

func TestMisspeltVariablesAreRefused(t *testing.T) {
	for variable, meant := range map[string]string{
		"QUARTET_NATS_ULR":             "QUARTET_NATS_URL",
		"QUARTET_NATSURL":              "QUARTET_NATS_URL",
		"QUARTET_DATADIR":              "QUARTET_DATA_DIR",
		"QUARTET_DATA_DIRS":            "QUARTET_DATA_DIR",
		"QUARTET_TLS_CAFILE":           "QUARTET_TLS_CA_FILE",
		"QUARTET_ADRESSES":             "QUARTET_ADDRESSES",
		"QUARTET_BOOTSTRAP_TOKEN_FLIE": "QUARTET_BOOTSTRAP_TOKEN_FILE",
		"QUARTET_OPNE":                 "QUARTET_OPEN",
	} {
		err := within("PATH=/bin", variable+"=hunter2").Load("")
		require.ErrorContains(t, err, variable)
		require.ErrorContains(t, err, "did you mean "+meant+"?")
		require.NotContains(t, err.Error(), "hunter2", "a value may be a secret")
	}
	err := within("QUARTET_NATS_ULR=x", "QUARTET_DATADIR=y").Load("")
	require.ErrorContains(t, err, "QUARTET_NATS_URL")
	require.ErrorContains(t, err, "QUARTET_DATA_DIR", "all of them are named at once")
}

func TestVariablesOfOthersAreAccepted(t *testing.T) {
	require.NoError(t, within(
		"QUARTET_ADDRESS=a", "QUARTET_TLS=1", "QUARTET_TOKEN=t", "QUARTET_TOKEN_FILE=f", // clients
		"QUARTET_TASK_ID=tsk_1", "QUARTET_STEP_ID=s", "QUARTET_TAG=dev", // commands, steps, compose
		"QUARTET_SERVICE_HOST=10.0.0.1", "QUARTET_SERVICE_PORT=1", "QUARTET_SERVICE_PORT_GRPC=1",
		"QUARTET_PORT=tcp://10.0.0.1:1",
		// Kubernetes
		"QUARTET_PORT_7480_TCP=x", "QUARTET_PORT_7480_TCP_ADDR=x", "QUARTET_NATS_PORT=tcp://10.0.0.1:1",
		"QUARTET_NATS_SERVICE_HOST=x",
		"QUARTET_TEST_OPEN=1", "QUARTET_MINE=1", "QUARTET_DATA_DIR=d", "QUARTET_BOOTSTRAP_TOKEN_FILE=f",
		"UNRELATED=1", "", "=C:=C:",
	).Load(""))
	s := within("QUARTET_NATS_USER=u", "QUARTET_NATS_URI=u")
	s.Know("QUARTET_NATS_USER")
	err := s.Load("")
	require.ErrorContains(t, err, "QUARTET_NATS_URI", "what is close to a known variable is still refused")
	require.NotContains(t, err.Error(), "QUARTET_NATS_USER is no setting")
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"abc", "abc", 0},
		{"abc", "acb", 1},
		{"abc", "ab", 1},
		{"abc", "xbc", 1},
		{"abc", "cab", 2},
		{"abcd", "badc", 2},
		{"abc", "abcxyz", 3},
		{"kitten", "sitting", 3},
	} {
		require.Equal(t, c.want, distance(c.a, c.b, 3), "%s %s", c.a, c.b)
		require.Equal(t, c.want, distance(c.b, c.a, 3), "%s %s", c.b, c.a)
	}
	require.Greater(t, distance("a", "abcdef", 2), 2)
}
