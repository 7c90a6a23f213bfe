package workers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/client"
	"quartet/pkg/must"
)

// A directory that is not there is refused by its flag's name.
func TestExecuteStepsRefusesWhatIsNotThere(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }) // see confine.Protect
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	missing := filepath.Join(t.TempDir(), "missing")
	err := executeSteps(cmd, nil, flags{writable: []string{missing}, steps: client.StepOptions{
		ID: "w_" + filepath.Base(t.TempDir()),
	}})
	require.ErrorContains(t, err, "--writable")
	require.ErrorContains(t, err, missing)
}

// A handler writes the home, and directories around it, only if they are named.
func TestT10_AHandlerDoesNotWriteTheHome(t *testing.T) {
	home := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	project := filepath.Join(home, "project")
	require.NoError(t, os.Mkdir(project, 0o700))
	t.Setenv("HOME", home)
	for _, dir := range []string{home, filepath.Dir(home)} {
		t.Chdir(dir)
		_, err := newHandler(newHost(t), flags{writable: []string{project}})
		require.ErrorContains(t, err, "the working directory "+dir+" is your home or contains it")
	}
	t.Chdir(home)
	h := must.Value(newHandler(newHost(t), flags{writable: []string{project, "."}}))(t)
	require.Equal(t, []string{home, project}, h.writable)
	t.Chdir(project)
	h = must.Value(newHandler(newHost(t), flags{}))(t)
	require.Equal(t, []string{project}, h.writable)
}
