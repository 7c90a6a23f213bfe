package confine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
)

// ordinaryVariable marks the test binary that runs as an ordinary user.
const ordinaryVariable = "CONFINE_TEST_ORDINARY_USER"

// TestOrdinaryUser runs other tests as a user other than root, in a process that is protected as servers and workers are.
func TestOrdinaryUser(t *testing.T) {
	if os.Getenv(ordinaryVariable) != "" {
		require.NotZero(t, os.Getuid())
		return
	}
	const nobody = 65534
	dir := filepath.Join(t.TempDir(), "tmp")
	require.NoError(t, os.Mkdir(dir, 0o700))
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run", "^(TestOrdinaryUser|TestCommandsWorkInTheirSandbox|TestAProcessHasANumberOfTheHost|TestCloseKillsWhatIsLeft|TestAMissingProgramIsAnError|TestOrphansAreReaped)$")
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, ordinaryVariable + "=1"}
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(dir, nobody, nobody))
		for above := filepath.Dir(dir); above != os.TempDir(); above = filepath.Dir(above) {
			require.NoError(t, os.Chmod(above, 0o711))
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestCommandsWorkInTheirSandbox/namespaces")
}

// protectOrdinary protects the process if it is the one of TestOrdinaryUser.
func protectOrdinary() error {
	if os.Getenv(ordinaryVariable) == "" {
		return nil
	}
	return confine.Protect()
}
