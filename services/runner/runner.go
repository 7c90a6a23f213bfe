package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/tracing"
)

// The providers.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
)

// The providers' own base URLs. Compatible servers have others.
const (
	AnthropicURL = "https://api.anthropic.com"
	OpenAIURL    = "https://api.openai.com/v1"
)

// Config configures a runner.
type Config struct {
	// AgentIDs name the agents whose turns are run.
	AgentIDs []string
	// Provider is Anthropic or OpenAI.
	Provider string
	// Model is the name of the model at the provider.
	Model string
	// BaseURL is the URL of the provider's API. No other host is called. Default: the
	// provider's own.
	BaseURL string
	// Key is the provider's credential. It is never shown or logged. It may be empty if
	// BaseURL is not the provider's own.
	Key string
	// MaxTokens limits one reply. Default 8192 for Anthropic, no limit for others.
	MaxTokens int
	// MaxRounds is the number of rounds after which a turn is completed in any case. Default 100.
	MaxRounds int
	// MaxTurns ends the runner after this number of turns; 0: no limit.
	MaxTurns int
	// Concurrency is how many turns run at once. Default 1.
	Concurrency int
	// Workspace is the directory of the local file tools. Default: the agent's.
	Workspace string
	// System is put before everything else in the system prompt.
	System string
	// Summaries lets the model sum up older conversation when a context leaves some out: one more
	// request to the provider for each summary.
	Summaries bool
	// Attempts limits how often one reply is requested. Default 10, which takes about
	// five minutes. It is high because a message is quarantined after three failed turns,
	// and failures of a provider are not caused by the message.
	Attempts int
	// Backoff is the pause before the second attempt; it doubles each time up to
	// MaxBackoff. Defaults: 1 s and 60 s.
	Backoff, MaxBackoff time.Duration
	// Silence is how long the provider may send nothing before the call is cancelled and
	// repeated. Default 10 min, because reasoning models send nothing for a long time.
	Silence time.Duration
	// Out gets the progress: as JSON lines, or as text, which may have colours.
	Out          io.Writer
	JSON, Colour bool
	// Tracer records calls of the model as spans of their turn's trace. Optional.
	Tracer *tracing.Tracer
	// Transport sends requests to the provider; nil: http.DefaultTransport.
	Transport http.RoundTripper
}

// KeyVariable returns the name of the environment variable with a provider's key.
func KeyVariable(provider string) string {
	if provider == OpenAI {
		return "OPENAI_API_KEY"
	}
	return "ANTHROPIC_API_KEY"
}

// Runner runs turns of agents with a model.
type Runner struct {
	cfg   Config
	api   *client.Client
	model Model
	show  *show
}

// New checks the configuration and sets defaults. It makes no request.
func New(cfg Config, api *client.Client) (*Runner, error) {
	own := AnthropicURL
	switch cfg.Provider {
	case Anthropic:
	case OpenAI:
		own = OpenAIURL
	default:
		return nil, fmt.Errorf("provider %q is not known; use %s or %s", cfg.Provider, Anthropic, OpenAI)
	}
	if cfg.Model == "" {
		return nil, errors.New("model is missing: name one of the provider's models")
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = own
	}
	if cfg.Key == "" && cfg.BaseURL == own {
		return nil, fmt.Errorf("there is no key for %s: set $%s", own, KeyVariable(cfg.Provider))
	}
	if cfg.Key == "" {
		cfg.Key = "none" // a local server ignores it; the SDKs need one
	}
	for p, d := range map[*int]int{&cfg.MaxRounds: 100, &cfg.Concurrency: 1, &cfg.Attempts: 10} {
		if *p <= 0 {
			*p = d
		}
	}
	if cfg.Backoff <= 0 {
		cfg.Backoff = time.Second
	}
	if cfg.MaxBackoff < cfg.Backoff {
		cfg.MaxBackoff = max(time.Minute, cfg.Backoff)
	}
	if cfg.Silence <= 0 {
		cfg.Silence = 10 * time.Minute
	}
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	hc, err := providerClient(cfg.BaseURL, cfg.Silence, cfg.Transport)
	if err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg, api: api, show: &show{
		out: cfg.Out, json: cfg.JSON, colour: cfg.Colour,
		names: cfg.Concurrency > 1 || len(cfg.AgentIDs) != 1,
	}}
	r.model, err = newModel(cfg, hc)
	return r, err
}

// Run runs turns until ctx ends or MaxTurns are finished, and then returns nil. It returns
// an error if an agent does not exist, or after a failure that every further turn would
// have too, such as a refused key.
func (r *Runner) Run(ctx context.Context) error {
	for _, agentID := range r.cfg.AgentIDs {
		// Without this check the runner would wait silently for an agent that does not exist.
		_, err := client.Again(ctx, func(ctx context.Context) (*agentv1.ListToolsResponse, error) {
			return r.api.Agents.ListTools(ctx, &agentv1.ListToolsRequest{AgentId: agentID})
		})
		if err != nil {
			return err
		}
	}
	u, err := url.Parse(r.cfg.BaseURL)
	if err != nil {
		return err
	}
	r.show.event(event{Event: "ready", Text: fmt.Sprintf("%s %s at %s", r.cfg.Provider, r.cfg.Model, u.Host)})
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = r.api.RunTurns(ctx, client.RunnerOptions{
		Name: "quartet run " + r.cfg.Provider, AgentIDs: r.cfg.AgentIDs, Concurrency: r.cfg.Concurrency,
		MaxTurns: r.cfg.MaxTurns,
		Announce: func(t *client.Turn, ms []*agentv1.Message) {
			for _, m := range ms {
				r.show.event(turnEvent(t, "announced", m.GetText()))
			}
		},
		Finished: func(t *client.Turn, err error) {
			r.show.ended(t, err)
			var final *endError
			if errors.As(err, &final) {
				stop(final)
			}
		},
		Troubled: func(err error) {
			f := fault.From(err)
			r.show.event(event{Event: "trouble", Text: f.Error()})
		},
	}, r.think)
	var final *endError
	if err == nil && errors.As(context.Cause(ctx), &final) {
		err = final
	}
	return err
}

// endError ends the runner, because every further turn would fail too.
type endError struct{ text string }

func (e *endError) Error() string { return e.text }

// workspaceOf opens the directory of the local file tools. It returns nil if the
// directory is not on this machine, or the agent's profile has no local environment.
func (r *Runner) workspaceOf(t *client.Turn) (*workspace, error) {
	dir := r.cfg.Workspace
	if dir == "" {
		dir = t.Agent.GetWorkspaceRoot()
	}
	has := false
	for _, f := range t.Agent.GetToolFamilies() {
		has = has || f == agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT
	}
	if dir == "" || !has {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		if r.cfg.Workspace == "" && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)) {
			return nil, nil // the directory is on the worker's machine
		}
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return &workspace{root: root}, nil
}

// toolsOf returns the tools that the turn may call, as the server describes them, and
// the local file tools if files is set.
func (r *Runner) toolsOf(ctx context.Context, t *client.Turn, files bool) ([]Tool, error) {
	listed, err := client.Again(ctx, func(ctx context.Context) (*agentv1.ListToolsResponse, error) {
		return r.api.Agents.ListTools(ctx, &agentv1.ListToolsRequest{AgentId: t.Record.GetAgentId()})
	})
	if err != nil {
		return nil, err
	}
	allowed := map[string]bool{}
	for _, name := range t.Tools {
		allowed[name] = true
	}
	var tools []Tool
	for _, s := range listed.GetTools() {
		if allowed[s.GetName()] {
			tools = append(tools, Tool{Name: s.GetName(), Description: s.GetDescription(), Schema: s.GetInputSchema().
				AsMap()})
		}
	}
	if files {
		tools = append(tools, localTools...)
	}
	return tools, nil
}

// lower returns the name of an enum value without its prefix, in lower case.
func lower(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
