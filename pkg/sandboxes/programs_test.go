package sandboxes_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/confine"
	"quartet/pkg/proctree"
	"quartet/pkg/sandboxes"
)

func host(t *testing.T) *proctree.Host {
	h, err := proctree.Open(t.Context(), proctree.Config{Owner: t.Name() + t.TempDir(), Boot: "1"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// run runs a shell command and returns its output.
func run(ctx context.Context, h *proctree.Host, command, input string, grace time.Duration) (stdout, stderr string,
	err error,
) {
	var out, errs bytes.Buffer
	err = sandboxes.Run(ctx, h, nil, sandboxes.Program{
		Spec:  confine.Spec{Argv: []string{"/bin/sh", "-c", command}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}},
		Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errs, Grace: grace,
	})
	return out.String(), errs.String(), err
}

func TestRun(t *testing.T) {
	h := host(t)
	out, errs, err := run(t.Context(), h, "cat; echo problem >&2", "hello", 0)
	require.NoError(t, err)
	require.Equal(t, "hello", out)
	require.Equal(t, "problem\n", errs)
	_, _, err = run(t.Context(), h, "exit 3", strings.Repeat("input that nobody reads", 100_000), 0)
	var exit *sandboxes.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.Status.ExitStatus())
	require.EqualError(t, err, "exit status 3")
	_, _, err = run(t.Context(), h, "kill -SEGV $$", "", 0)
	require.EqualError(t, err, "ended by SIGSEGV")
	out, _, err = run(t.Context(), h, "sleep 1000 & echo left", "", 0)
	require.NoError(t, err)
	require.Equal(t, "left\n", out, "a process that is left is killed, and does not delay the end")
}

func TestRunEndsWithItsContext(t *testing.T) {
	h := host(t)
	for grace, want := range map[time.Duration]string{0: "", time.Minute: "asked\n"} {
		ctx, cancel := context.WithCancel(t.Context())
		started := new(notified)
		started.f = cancel
		var out bytes.Buffer
		require.Error(t, sandboxes.Run(ctx, h, nil, sandboxes.Program{
			Spec: confine.Spec{Argv: []string{"/bin/sh", "-c", "trap 'echo asked; exit 1' TERM; echo up >&2; while " +
				":; do sleep 0.01; done"}, Dir: "/"},
			Stdout: &out, Stderr: started, Grace: grace,
		}))
		require.Equal(t, want, out.String())
	}
}

// notified calls f at the first write.
type notified struct{ f func() }

func (n *notified) Write(b []byte) (int, error) {
	n.f()
	return len(b), nil
}
