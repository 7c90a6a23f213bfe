package cli

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/services/cli/exit"
)

// A build without servers and workers, as that for Windows, refuses their commands with their flags, and says where
// they are.
func TestABuildWithoutServersSaysSo(t *testing.T) {
	for _, args := range [][]string{
		{"dev", "--data-dir", "/tmp/x", "--open"},
		{"serve", "all", "--nats-url", "nats://127.0.0.1:4222"},
		{"worker", "--root", "."},
		{"restore", "quartet.backup"},
		{"verify"},
		{"repair", "--apply"},
		{"doctor", "-o", "json"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exit.Failed, Run(t.Context(), Servers{ClientsOnly: true}, args, strings.NewReader(""), &out,
			&errs), args)
		require.Contains(t, errs.String(), "quartet "+args[0]+": this build for "+runtime.GOOS+"/"+runtime.GOARCH)
		require.Contains(t, errs.String(), "--address HOST:PORT")
		require.Empty(t, out.String())
	}
}
