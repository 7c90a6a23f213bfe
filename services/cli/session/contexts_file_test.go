package session

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// home makes the test's directory that of the configuration and returns the path of the file.
func home(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	return filepath.Join(dir, "quartet", "contexts.yaml")
}

func TestContextsAreKept(t *testing.T) {
	path := home(t)
	f := must.Value(ReadContexts())(t)
	require.Equal(t, []string{LocalContext}, f.Names())
	prod := Context{Address: "host:7481", TokenFile: "/k", TLS: true, CAFile: "/ca"}
	require.NoError(t, ChangeContexts(func(f *ContextFile) error {
		f.Contexts["prod"] = prod
		f.Current = "prod"
		return nil
	}))
	require.Equal(t, os.FileMode(0o600), must.Value(os.Stat(path))(t).Mode().Perm())
	f = must.Value(ReadContexts())(t)
	require.Equal(t, ContextFile{Current: "prod", Contexts: map[string]Context{"prod": prod}}, f)
	c := must.Value(chosenContext(""))(t)
	require.Equal(t, &prod, c)
	c = must.Value(chosenContext(LocalContext))(t)
	require.Nil(t, c)
	must.Fail(chosenContext("prd"))(t, `there is no context "prd"; there are local, prod`)

	require.ErrorIs(t, ChangeContexts(func(f *ContextFile) error {
		f.Current = LocalContext
		return os.ErrInvalid
	}), os.ErrInvalid)
	f = must.Value(ReadContexts())(t)
	require.Equal(t, "prod", f.Current, "a change that fails changes nothing")
}

func TestChangesAtTheSameTime(t *testing.T) {
	home(t)
	const n = 20
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = ChangeContexts(func(f *ContextFile) error {
				f.Contexts[fmt.Sprint("c", i)] = Context{Address: "h:1"}
				return nil
			})
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, must.Value(ReadContexts())(t).Contexts, n)
}

func TestWhatIsRefused(t *testing.T) {
	path := home(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	for text, want := range map[string]string{
		"contexts: {a: {adr: x}}": "adr",
		"contexts: [":             "contexts",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		must.Fail(ReadContexts())(t, want)
	}
	require.NoError(t, os.Chmod(path, 0o644))
	must.Fail(ReadContexts())(t, "chmod 600")
	require.NoError(t, os.Remove(path))

	key := filepath.Join(t.TempDir(), "key")
	c := Context{TokenFile: key}
	must.Fail(c.Token())(t, "no such file")
	require.NoError(t, os.WriteFile(key, []byte("qk_1\n"), 0o600))
	require.Equal(t, "qk_1", must.Value(c.Token())(t))
	require.NoError(t, os.Chmod(key, 0o640))
	must.Fail(c.Token())(t, "open to other users")
	require.NoError(t, os.Chmod(key, 0o600))
	require.NoError(t, os.WriteFile(key, []byte("two words"), 0o600))
	must.Fail(c.Token())(t, "one credential")
	for _, name := range []string{"", "-a", "a b", LocalContext, "ä"} {
		require.Error(t, CheckContextName(name), name)
	}
	require.NoError(t, CheckContextName("prod.eu-1_x"))
}
