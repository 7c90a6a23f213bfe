package workers

import (
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/client"
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
