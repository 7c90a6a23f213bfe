package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/session"
)

// RunOptions are the flags of `quartet run`. The provider's key is not among them: it
// is read from the environment, because every user of the machine can read flags.
type RunOptions struct {
	AgentIDs                                    []string
	Provider, Model, BaseURL, Workspace, System string
	MaxTokens, MaxRounds                        int  // of one reply, of one turn; 0: the default
	MaxTurns                                    int  // after which it exits; 0: never
	Concurrency                                 int  // how many turns run at once
	Summaries                                   bool // the model sums up what a context leaves out
	Out                                         io.Writer
	JSON, Colour                                bool
}

// runCommand returns `quartet run`.
func runCommand(s *session.Session, run func(context.Context, grpc.ClientConnInterface,
	RunOptions) error,
) *cobra.Command {
	var o RunOptions
	var once bool
	var system string
	cmd := &cobra.Command{
		Use: "run --agent AGENT --provider PROVIDER --model MODEL", Short: "Drive an agent with a model",
		Args: input.None,
		Long: `Run the turns of an agent with a model. The text of the model is streamed to the
terminal, its tool calls are executed by the server, and files of the workspace are
read and written on this machine. The command waits for turns until ^C, which
releases a running turn for another runner.

The provider's key is read from $ANTHROPIC_API_KEY or $OPENAI_API_KEY. Only the host
of --base-url is called. From another terminal, "quartet agent say AGENT --priority
interject TEXT" reaches the running turn. -o json writes one line of JSON for each
event.`,
		Example: `  quartet run --agent keeper --provider anthropic --model claude-sonnet-4-5
  quartet run --agent keeper --provider openai --model gpt-5 --once
  quartet run --agent keeper --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3 -o json`,
		RunE: s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			if run == nil {
				return errors.New("this binary has no runner")
			}
			for flag, value := range map[string]string{
				"agent": strings.Join(o.AgentIDs, ""), "provider": o.Provider,
				"model": o.Model,
			} {
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
			o.Out, o.JSON, o.Colour = cmd.OutOrStdout(), s.JSON(), terminal.WantsColour(cmd.OutOrStdout())
			return run(cmd.Context(), conn, o)
		}),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.AgentIDs, "agent", nil, "The agent to run; several are separated by commas, or the flag is "+
		"repeated")
	f.StringVar(&o.Provider, "provider", "", "anthropic, or openai (also for servers that are compatible with its "+
		"Chat Completions)")
	f.StringVar(&o.Model, "model", "", "The model's name at the provider")
	f.StringVar(&o.BaseURL, "base-url", "", "Base URL of the provider's API (default: the provider's own)")
	f.StringVar(&o.Workspace, "workspace", "", "Directory of the file tools (default: the agent's own)")
	f.StringVar(&system, "system", "", "A file with text that is put before everything else in the system prompt")
	f.BoolVar(&o.Summaries, "summaries", false, "Let the model sum up older conversation when a context leaves some "+
		"out; a request more each time")
	f.IntVar(&o.MaxTokens, "max-tokens", 0, "Maximum tokens of one reply (default 8192 for anthropic, else the "+
		"provider's)")
	f.IntVar(&o.MaxRounds, "max-rounds", 0, "Maximum rounds of one turn (default 100)")
	f.IntVar(&o.MaxTurns, "max-turns", 0, "Exit after this number of turns; 0: never")
	f.BoolVar(&once, "once", false, "Exit after one turn")
	f.IntVar(&o.Concurrency, "concurrency", 1, "How many turns run at once")
	return cmd
}
