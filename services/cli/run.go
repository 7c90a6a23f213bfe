package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// RunOptions are what `quartet run` is told. The key comes from the
// environment, never from a flag: flags are seen by everybody on the machine.
type RunOptions struct {
	AgentIDs                                    []string
	Provider, Model, BaseURL, Workspace, System string
	MaxTokens, MaxRounds, MaxTurns, Concurrency int
	Out                                         io.Writer
	JSON, Colour                                bool
}

func runCommand(s *session.Session, run func(context.Context, grpc.ClientConnInterface, RunOptions) error) *cobra.Command {
	var o RunOptions
	var once bool
	var system string
	cmd := &cobra.Command{
		Use: "run --agent AGENT --provider PROVIDER --model MODEL", Short: "Drive an agent with a model", Args: input.None,
		Long: `Take an agent's turns and let a model think them through: its text streams to the
terminal, its tool calls are run by the server, files of the workspace are read
and written here. It waits for turns until ^C, which hands a running turn back.

Keys: $ANTHROPIC_API_KEY or $OPENAI_API_KEY. Only the host of --base-url is called.
From another terminal, "quartet agent say AGENT --priority interject TEXT" reaches
the running turn. -o json writes one line of JSON for each event.`,
		Example: `  quartet run --agent keeper --provider anthropic --model claude-sonnet-4-5
  quartet run --agent keeper --provider openai --model gpt-5 --once
  quartet run --agent keeper --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3 -o json`,
		RunE: s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			if run == nil {
				return errors.New("this binary has no runner")
			}
			for flag, value := range map[string]string{"agent": strings.Join(o.AgentIDs, ""), "provider": o.Provider, "model": o.Model} {
				if value == "" {
					return exit.UsageError("--" + flag + " is missing")
				}
			}
			if once {
				o.MaxTurns = 1
			}
			if system != "" {
				b, err := os.ReadFile(system)
				if err != nil {
					return exit.UsageError("--system: " + err.Error())
				}
				o.System = string(b)
			}
			o.Out, o.JSON, o.Colour = cmd.OutOrStdout(), s.JSON(), output.WantsColour(cmd.OutOrStdout())
			return run(cmd.Context(), conn, o)
		}),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.AgentIDs, "agent", nil, "The agent to drive; several with commas or by repeating it")
	f.StringVar(&o.Provider, "provider", "", "anthropic, or openai (and whatever speaks its Chat Completions)")
	f.StringVar(&o.Model, "model", "", "The provider's name of the model")
	f.StringVar(&o.BaseURL, "base-url", "", "Where the provider's API is (default: the provider's own)")
	f.StringVar(&o.Workspace, "workspace", "", "Directory of the file tools (default: the agent's own)")
	f.StringVar(&system, "system", "", "A file whose text is said to the model before everything else")
	f.IntVar(&o.MaxTokens, "max-tokens", 0, "Most tokens of one reply (default 8192 at anthropic, else the provider's)")
	f.IntVar(&o.MaxRounds, "max-rounds", 0, "Most rounds of one turn (default 100)")
	f.IntVar(&o.MaxTurns, "max-turns", 0, "End after so many turns; 0: never")
	f.BoolVar(&once, "once", false, "End after one turn")
	f.IntVar(&o.Concurrency, "concurrency", 1, "How many turns run at once")
	return cmd
}
