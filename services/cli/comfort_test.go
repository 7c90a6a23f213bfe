package cli

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
	"quartet/services/cli/exit"
)

// With -o json an error is one document on stderr, with the names of the REST API and the exit code.
func TestErrorsAsJSON(t *testing.T) {
	r := newHarness(t)
	type document struct {
		Error struct {
			ExitCode                          int
			Status, Reason, Message, Fix, See string
			Metadata                          map[string]string
			Fields                            []struct{ Field, Description string }
		}
	}
	read := func(s result) document {
		var d document
		dec := json.NewDecoder(strings.NewReader(s.err))
		dec.DisallowUnknownFields()
		require.NoError(t, dec.Decode(&d), s.err)
		require.False(t, dec.More(), "one document")
		require.Equal(t, s.code, d.Error.ExitCode)
		require.Empty(t, s.out)
		return d
	}
	r.planes.fail(fault.RevisionConflict.New("it <moved> on", "revision", "9").WithField("revision", "must be 9"))
	d := read(r.run("work", "complete", "keeper", "wi_1", "-o", "json"))
	require.Equal(t, exit.Conflict, d.Error.ExitCode)
	require.Equal(t, "ABORTED", d.Error.Status)
	require.Equal(t, "REVISION_CONFLICT", d.Error.Reason)
	require.Equal(t, "it <moved> on", d.Error.Message)
	require.Equal(t, map[string]string{"revision": "9"}, d.Error.Metadata)
	require.Equal(t, "revision", d.Error.Fields[0].Field)
	require.Contains(t, d.Error.Fix, "its revision is now 9")
	r.planes.fail(nil)
	d = read(r.run("agent", "get", "-o", "json"))
	require.Equal(t, "AGENT is missing", d.Error.Message)
	require.Equal(t, "quartet agent get --help", d.Error.See)
	require.Empty(t, d.Error.Reason)
}

// The address of REST in place of that of gRPC is recognised, in plain text and as a URL.
func TestTheAddressOfREST(t *testing.T) {
	r := newHarness(t)
	rest := httptest.NewServer(http.NotFoundHandler())
	defer rest.Close()
	r.address = strings.TrimPrefix(rest.URL, "http://")
	s := r.run("agent", "list")
	require.Equal(t, exit.Unavailable, s.code)
	require.Contains(t, s.err, "it is that of REST, not of gRPC")
	require.Contains(t, s.err, "7481")
	s = r.run("agent", "list", "--address", rest.URL)
	require.Equal(t, exit.Usage, s.code)
	require.Contains(t, s.err, "is a URL of REST")
	require.Contains(t, s.err, "host:port")

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t,
		os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	r.address = strings.TrimPrefix(secure.URL, "https://")
	s = r.run("agent", "list", "--tls-ca-file", ca)
	require.NotZero(t, s.code)
	require.Contains(t, s.err, "it is that of REST, not of gRPC")
}

// A variable that is nearly one of a client's or a server's is refused; those of servers beside a client are not.
func TestMisspeltVariables(t *testing.T) {
	r := newHarness(t)
	t.Setenv("QUARTET_DATA_DIR", "/d")
	t.Setenv("QUARTET_ADDRESSES", "work=h:1")
	run := func() result {
		var out, errs bytes.Buffer
		code := Run(t.Context(), Servers{Flags: func(fs *pflag.FlagSet) {
			fs.String("data-dir", "", "")
			fs.String("addresses", "", "")
		}}, []string{"agent", "list", "--address", r.address}, nil, &out, &errs)
		return result{code, out.String(), errs.String()}
	}
	s := run()
	require.Zero(t, s.code, s.err)
	t.Setenv("QUARTET_ADDRESS_", "h:1")
	s = run()
	require.Equal(t, exit.Usage, s.code)
	require.Contains(t, s.err, "QUARTET_ADDRESS_ is no setting; did you mean QUARTET_ADDRESS?")
}

// --utc writes times in UTC and reads those without a zone so.
func TestTimeZones(t *testing.T) {
	r := newHarness(t)
	require.Contains(t, r.run("agent", "turns", "keeper", "--utc").out, "2026-03-04 05:06:07Z")
	require.NotContains(t, r.run("agent", "turns", "keeper").out, "Z")
	require.Contains(t, r.run("events", "--utc").out, "2026-03-04 05:06:07.000Z")
}

// Lists that leave out ended records say so, unless they are asked for all.
func TestListsSayWhatTheyHide(t *testing.T) {
	r := newHarness(t)
	for _, line := range []string{
		"task list keeper", "wait list keeper", "trigger list keeper", "timer list keeper",
		"board list keeper",
	} {
		require.Contains(t, r.run(strings.Fields(line)...).out, "--all shows them too", line)
		require.NotContains(t, r.run(append(strings.Fields(line), "--all")...).out, "--all", line)
		require.NotContains(t, r.run(append(strings.Fields(line), "-o", "json")...).out, "--all", line)
	}
	require.Contains(t, r.run("events", "--help").out, "waiting, board")
}

// Contexts name servers: the current one applies where no address is given, and its credential goes nowhere else.
func TestContexts(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	r := newHarness(t)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t,
		os.WriteFile(key, []byte(r.keys.Mint(rpc.Actor{Namespace: "acme", Principal: "olga", Role: rpc.RoleOperator})+
			"\n"), 0o600))
	run := func(args ...string) result {
		var out, errs bytes.Buffer
		code := Run(t.Context(), Servers{}, args, nil, &out, &errs)
		return result{code, out.String(), errs.String()}
	}
	s := run("context", "list")
	require.Zero(t, s.code, s.err)
	require.Regexp(t, `(?m)^\*\s+local\s+127\.0\.0\.1:7481`, s.out)

	s = run("context", "add", "prod", "--address", r.address, "--token-file", key)
	require.Zero(t, s.code, s.err)
	s = run("context", "add", "prod", "--address", r.address)
	require.Equal(t, exit.Usage, s.code)
	require.Contains(t, s.err, "--replace")
	require.Zero(t, run("context", "use", "prod").code)
	s = run("agent", "list")
	require.Zero(t, s.code, s.err)
	require.Equal(t, "olga", r.planes.actor.Principal)

	// Another server gets neither the address nor the credential of the context.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := l.Addr().String()
	require.NoError(t, l.Close())
	require.Equal(t, exit.Unavailable, run("agent", "list", "--address", gone).code)
	r.planes.actor = rpc.Actor{}
	require.Zero(t, run("agent", "list", "--address", r.address).code)
	require.NotEqual(t, "olga", r.planes.actor.Principal)

	s = run("context", "list", "-o", "json")
	require.Contains(t, s.out, `"current": "prod"`)
	require.Contains(t, s.out, key)
	t.Setenv("QUARTET_CONTEXT", "prd")
	s = run("agent", "list")
	require.Equal(t, exit.Usage, s.code)
	require.Contains(t, s.err, `$QUARTET_CONTEXT: there is no context "prd"; there are local, prod`)
	t.Setenv("QUARTET_CONTEXT", "")
	for _, args := range [][]string{
		{"context", "add", "x", "--address", "h:1", "--token", "qk_1_2"},
		{
			"context", "add", "local", "--address",
			"h:1",
		},
		{"context", "add", "x"},
		{"context", "add", "x", "--address", "http://h:1"},
		{
			"context", "add", "x", "--address", "h:1", "--token-file",
			key + ".none",
		},
		{"context", "use", "x"},
		{"context", "remove", "x"},
	} {
		require.Equal(t, exit.Usage, run(args...).code, args)
	}
	require.NoError(t, os.Chmod(key, 0o644))
	s = run("agent", "list")
	require.Equal(t, exit.Usage, s.code)
	require.Contains(t, s.err, "chmod 600")
	require.Zero(t, run("context", "remove", "prod").code)
	require.Regexp(t, `(?m)^\*\s+local`, run("context", "list").out)
}

// A hook of a coding agent gets the text as its tool takes it, and does not fail where there is nothing to say.
func TestPrimeForHooks(t *testing.T) {
	r := newHarness(t)
	text := r.run("prime", "keeper").out
	require.Equal(t, text, r.run("prime", "keeper", "--hook", "claude").out)
	require.Equal(t, text, r.run("prime", "keeper", "--hook", "codex").out)
	var d map[string]string
	require.NoError(t, json.Unmarshal([]byte(r.run("prime", "keeper", "--hook", "cursor").out), &d))
	require.Equal(t, map[string]string{"additional_context": text}, d)
	s := r.run("prime", "keeper", "--hook", "emacs")
	require.Equal(t, exit.Usage, s.code)
	r.planes.fail(fault.NotFound.New(`agent "keeper" does not exist`))
	s = r.run("prime", "keeper", "--hook", "claude")
	require.Zero(t, s.code)
	require.Empty(t, s.out)
	require.Contains(t, s.err, "does not exist")
	require.Equal(t, exit.NotFound, r.run("prime", "keeper").code)
}
