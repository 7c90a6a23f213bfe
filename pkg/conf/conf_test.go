package conf

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

type settings struct {
	Addr    string
	Key     string
	Debug   bool
	Count   int
	Ratio   float64
	Wait    time.Duration
	Roots   []string
	Targets map[string]string
}

// load declares one setting of each type and loads them.
func load(t *testing.T, args []string, env map[string]string, file string) (settings, *Set, error) {
	var v settings
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s := New(flags)
	s.String(&v.Addr, "http-addr", "127.0.0.1:8080", "where REST listens")
	s.Secret(&v.Key, "token-key", "key of run tokens")
	s.Bool(&v.Debug, "debug", false, "log more")
	s.Int(&v.Count, "count", 3, "a number")
	s.Float(&v.Ratio, "ratio", 0.5, "a ratio")
	s.Duration(&v.Wait, "wait", time.Second, "a span")
	s.Strings(&v.Roots, "roots", []string{"/a"}, "places | more")
	s.Map(&v.Targets, "targets", nil, "addresses of services")
	s.getenv = func(k string) (string, bool) { x, ok := env[k]; return x, ok }
	require.NoError(t, flags.Parse(args))
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "quartet.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	}
	return v, s, s.Load(path)
}

func TestPrecedence(t *testing.T) {
	file := "http: {addr: from-file}\ncount: 7\nratio: 0.25\nwait: 5s\n"
	var v settings
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s := New(flags)
	s.String(&v.Addr, "http-addr", "default", "")
	s.Int(&v.Count, "count", 1, "")
	s.Float(&v.Ratio, "ratio", 0, "")
	s.Duration(&v.Wait, "wait", 0, "")
	s.Bool(&v.Debug, "debug", true, "")
	s.getenv = func(k string) (string, bool) {
		x, ok := map[string]string{"QUARTET_HTTP_ADDR": "from-env", "QUARTET_COUNT": "8"}[k]
		return x, ok
	}
	require.NoError(t, flags.Parse([]string{"--http-addr=from-flag"}))
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	require.NoError(t, s.Load(path))
	require.Equal(t, settings{Addr: "from-flag", Count: 8, Ratio: 0.25, Wait: 5 * time.Second, Debug: true}, v)
	for name, origin := range map[string]string{
		"http-addr": "flag", "count": "env", "ratio": "file", "wait": "file",
		"debug": "default",
	} {
		require.Equal(t, origin, s.Origin(name), name)
	}
}

func TestListsAndMapsFromFile(t *testing.T) {
	for _, file := range []string{
		"roots: [/x, \"/y,z\"]\ntargets:\n  work: host:1\n  agent: \"a,b\"\n",
		`{"roots": ["/x", "/y,z"], "targets": {"work": "host:1", "agent": "a,b"}}`,
	} {
		var v settings
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		s := New(flags)
		s.Strings(&v.Roots, "roots", []string{"/default"}, "")
		s.Map(&v.Targets, "targets", map[string]string{"old": "1"}, "")
		s.getenv = func(string) (string, bool) { return "", false }
		path := filepath.Join(t.TempDir(), "c")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		require.NoError(t, s.Load(path))
		require.Equal(t, []string{"/x", "/y,z"}, v.Roots)
		require.Equal(t, map[string]string{"work": "host:1", "agent": "a,b"}, v.Targets)
	}
}

func TestUnknownKeysAreRefusedByName(t *testing.T) {
	_, _, err := load(t, nil, nil, "http:\n  adr: x\ncount: 1\nnonsense: 2\n")
	require.ErrorContains(t, err, `"http-adr"`)
	require.ErrorContains(t, err, `"nonsense"`)
	require.ErrorContains(t, err, "line 2")
}

func TestMistakesAreReported(t *testing.T) {
	for file, want := range map[string]string{
		"count: many\n":                   "count",
		"count: [1]\n":                    "must be a int",
		"debug:\n":                        "debug",
		"- 1\n":                           "must be a map",
		"http: {addr: a}\nhttp-addr: b\n": "given twice",
		"targets: {work: {a: b}}\n":       "must be a map of texts",
		"roots: [[a]]\n":                  "must be a list of texts",
		"http: {\n":                       "configuration file",
	} {
		_, _, err := load(t, nil, nil, file)
		require.ErrorContains(t, err, want, file)
	}
	_, _, err := load(t, nil, map[string]string{"QUARTET_WAIT": "soon", "QUARTET_COUNT": "x"}, "")
	require.ErrorContains(t, err, "wait from env")
	require.ErrorContains(t, err, "count from env")
	require.Error(t, New(pflag.NewFlagSet("x", pflag.ContinueOnError)).Load("/does/not/exist"))
	_, _, err = load(t, nil, nil, "# only a comment\n")
	require.NoError(t, err)
}

func TestSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte("hunter2\n"), 0o600))
	var key string
	s := New(pflag.NewFlagSet("test", pflag.ContinueOnError))
	s.Secret(&key, "token-key", "key of run tokens")
	env := map[string]string{"QUARTET_TOKEN_KEY_FILE": path}
	s.getenv = func(k string) (string, bool) { x, ok := env[k]; return x, ok }
	require.NoError(t, s.Load(""))
	require.Equal(t, "hunter2", key)
	require.Empty(t, s.Describe()[0].Default)
	require.Equal(t, map[string]string{"QUARTET_TOKEN_KEY_FILE": path}, s.SecretFiles())

	env["QUARTET_TOKEN_KEY"] = "other"
	require.ErrorContains(t, s.Load(""), "keep one")
	delete(env, "QUARTET_TOKEN_KEY")
	env["QUARTET_TOKEN_KEY_FILE"] = path + ".missing"
	s2 := New(pflag.NewFlagSet("test", pflag.ContinueOnError))
	s2.Secret(&key, "token-key", "")
	s2.getenv = s.getenv
	require.ErrorContains(t, s2.Load(""), "QUARTET_TOKEN_KEY_FILE")

	file := filepath.Join(t.TempDir(), "quartet.yaml")
	require.NoError(t, os.WriteFile(file, []byte("token-key: hunter3\n"), 0o600))
	delete(env, "QUARTET_TOKEN_KEY_FILE")
	s3 := New(pflag.NewFlagSet("test", pflag.ContinueOnError))
	s3.Secret(&key, "token-key", "")
	s3.getenv = s.getenv
	require.NoError(t, s3.Load(file))
	require.Equal(t, map[string]string{"config": file}, s3.SecretFiles())
}

func TestDescribe(t *testing.T) {
	_, s, err := load(t, nil, nil, "")
	require.NoError(t, err)
	rows := s.Describe()
	require.Len(t, rows, 8)
	require.IsIncreasing(t, []string{rows[0].Name, rows[1].Name, rows[2].Name})
	for _, r := range rows {
		require.NotEmpty(t, r.Help)
	}
	page := Markdown(rows)
	require.Contains(t, page, "| `roots` | strings | `/a` | `QUARTET_ROOTS` | places \\| more |\n")
	require.Contains(t, page, "`QUARTET_TOKEN_KEY` or `QUARTET_TOKEN_KEY_FILE`")
}
