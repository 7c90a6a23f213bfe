//go:build !race

// The race detector does not start in a sandbox of an ordinary user, so make test runs these tests without it too.

package confine_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// ordinaryVariable marks the test binary that runs as an ordinary user.
const ordinaryVariable = "CONFINE_TEST_ORDINARY_USER"

// TestOrdinaryUser runs other tests as a user other than root, in a process that is protected as servers and workers
// are.
func TestOrdinaryUser(t *testing.T) {
	if os.Getenv(ordinaryVariable) != "" {
		require.NotZero(t, os.Getuid())
		return
	}
	const nobody = 65534
	// Everybody can reach /tmp; the directories of t.TempDir are those of one user, wherever they are.
	dir, err := os.MkdirTemp("/tmp", "confine-ordinary-user-") //nolint:usetesting // which is for one user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711))
	tmp, program := filepath.Join(dir, "tmp"), filepath.Join(dir, "program")
	require.NoError(t, os.Mkdir(tmp, 0o700))
	text, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o755)) // nobody else can reach the directory of the test binary
	caller := filepath.Join(dir, "caller")
	require.NoError(t, os.WriteFile(caller, must.Value(os.ReadFile(build(t, "caller", runtime.GOARCH)))(t), 0o755))
	// But for the network outside: not every machine lets its users open /dev/net/tun.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.run",
		"^(TestOrdinaryUser|TestCommandsWorkInTheirSandbox|TestAProcessHasANumberOfTheHost|TestCloseKillsWhatIsLeft|TestAMissingProgramIsAnError|TestOrphansAreReaped|TestAttacks|TestT10_NoSystemCallPassesTheFilter)$/^(namespaces|landlock)(-none|-all)?$")
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "HOME=" + tmp, ordinaryVariable + "=1", callerVariable + "=" + caller,
	}
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(tmp, nobody, nobody))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, level := range []string{
		"TestCommandsWorkInTheirSandbox/namespaces", "TestAttacks/namespaces-none",
		"TestAttacks/landlock-all", "TestT10_NoSystemCallPassesTheFilter/namespaces-all",
		"TestT10_NoSystemCallPassesTheFilter/landlock-none",
	} {
		require.Contains(t, string(out), "--- PASS: "+level)
	}
}

// protectOrdinary protects the process if it is the one of TestOrdinaryUser.
func protectOrdinary() error {
	if os.Getenv(ordinaryVariable) == "" {
		return nil
	}
	return confine.Protect()
}
