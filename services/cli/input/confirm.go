package input

import (
	"bufio"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
)

// Confirm adds the flag --yes to a command that cannot be undone. Without it, the person at the terminal has to type
// the first argument again; where nobody can be asked, the command is refused. what says what is done to it, as in
// "deletes agent %s".
func Confirm(cmd *cobra.Command, what string) *cobra.Command {
	var yes bool
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if yes {
			return run(cmd, args)
		}
		in, ok := cmd.InOrStdin().(*os.File)
		if !ok || !term.IsTerminal(int(in.Fd())) {
			return exit.UsageError(
				fmt.Sprintf("this "+what+", and nobody can be asked whether that is meant; give --yes",
					terminal.Printable(args[0])))
		}
		cmd.PrintErrf("This "+what+". Type %[1]s to go on: ", terminal.Printable(args[0]))
		if line := bufio.NewScanner(in); !line.Scan() || line.Text() != args[0] {
			return exit.UsageError("nothing was changed: that was not " + terminal.Printable(args[0]))
		}
		return run(cmd, args)
	}
	return cmd
}
