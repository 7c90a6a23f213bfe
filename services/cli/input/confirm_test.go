package input

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// A command that cannot be undone runs if it is confirmed: by the flag, or by a person who types the name.
func TestConfirm(t *testing.T) {
	ptmx, tty, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { _ = ptmx.Close(); _ = tty.Close() })
	file := must.Value(os.Open(os.DevNull))(t)
	t.Cleanup(func() { _ = file.Close() })
	for name, c := range map[string]struct {
		stdin io.Reader
		typed string
		args  []string
		want  string // the error
	}{
		"the flag":       {stdin: strings.NewReader(""), args: []string{"keeper", "--yes"}},
		"its short form": {stdin: file, args: []string{"keeper", "-y"}},
		"the name":       {stdin: tty, typed: "keeper\n", args: []string{"keeper"}},
		"another name": {
			stdin: tty, typed: "y\n", args: []string{"keeper"}, want: "nothing was changed: that was not keeper",
		},
		"nothing": {stdin: tty, typed: "\x04", args: []string{"keeper"}, want: "nothing was changed"},
		"no terminal": {
			stdin: strings.NewReader("keeper\n"), args: []string{"keeper"},
			want: "this deletes agent keeper, and nobody can be asked whether that is meant; give --yes",
		},
		"a file":                 {stdin: file, args: []string{"keeper"}, want: "give --yes"},
		"a name to be fooled by": {stdin: strings.NewReader(""), args: []string{"a\rb"}, want: "agent a\uFFFDb,"},
	} {
		t.Run(name, func(t *testing.T) {
			ran := false
			cmd := Confirm(&cobra.Command{
				Use: "delete", SilenceErrors: true, SilenceUsage: true,
				RunE: func(*cobra.Command, []string) error {
					ran = true
					return nil
				},
			}, "deletes agent %s")
			var asked bytes.Buffer
			cmd.SetIn(c.stdin)
			cmd.SetErr(&asked)
			cmd.SetArgs(c.args)
			if c.typed != "" {
				must.Value(ptmx.WriteString(c.typed))(t)
			}
			err := cmd.Execute()
			require.Equal(t, c.want == "", ran)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
			}
			require.Equal(t, c.typed != "", strings.Contains(asked.String(), "This deletes agent keeper. Type keeper "+
				"to go on: "))
		})
	}
}
