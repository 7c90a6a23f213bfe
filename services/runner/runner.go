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

// Their own addresses. Compatible servers have others.
const (
	AnthropicURL = "https://api.anthropic.com"
	OpenAIURL    = "https://api.openai.com/v1"
)

// Config of a runner.
type Config struct {
	// AgentIDs are whom it drives.
	AgentIDs []string
	// Provider is Anthropic or OpenAI.
	Provider string
	// Model is the provider's name of it.
	Model string
	// BaseURL is where the provider's API is, and the only host that is called.
	// Default the provider's own.
	BaseURL string
	// Key is the credential; never shown, never logged. It may be empty where
	// BaseURL is not the provider's own.
	Key string
	// MaxTokens bounds one reply. Default 8192 at Anthropic, none at others.
	MaxTokens int
	// MaxRounds bounds one turn; then it is completed as it stands. Default 100.
	MaxRounds int
	// MaxTurns ends the runner after so many turns; 0: none.
	MaxTurns int
	// Concurrency is how many turns run at once. Default 1.
	Concurrency int
	// Workspace overrides the agent's own directory for local file tools.
	Workspace string
	// System is said to the model before everything else.
	System string
	// Attempts bounds how often one reply is asked for. Default 10, which takes about
	// five minutes: a message is put aside after three turns, and trouble of a
	// provider is not its fault.
	Attempts int
	// Backoff is the pause before the second attempt, doubled each time up to
	// MaxBackoff. Default 1 s and 60 s.
	Backoff, MaxBackoff time.Duration
	// Silence is how long the provider may say nothing before its call is given
	// up and made again. Default 10 min: models that reason say nothing for long.
	Silence time.Duration
	// Out is where the runner shows what it does: JSON lines, or text in colour.
	Out          io.Writer
	JSON, Colour bool
	// Tracer has calls of the model told of as spans of their turn's trace. Optional.
	Tracer *tracing.Tracer
	// Transport carries requests to the provider; nil is the usual one.
	Transport http.RoundTripper
}

// KeyVariable is the environment variable that a provider's key is in.
func KeyVariable(provider string) string {
	if provider == OpenAI {
		return "OPENAI_API_KEY"
	}
	return "ANTHROPIC_API_KEY"
}

// Runner drives agents.
type Runner struct {
	cfg   Config
	api   *client.Client
	model Model
	show  *show
}

// New completes the configuration. Nothing is called before Run.
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
		return nil, errors.New("model is missing: which of the provider's models thinks")
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = own
	}
	if cfg.Key == "" && cfg.BaseURL == own {
		return nil, fmt.Errorf("there is no key for %s: set $%s", own, KeyVariable(cfg.Provider))
	}
	if cfg.Key == "" {
		cfg.Key = "none" // a local server does not look at it; the SDKs want one
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
	r := &Runner{cfg: cfg, api: api, show: &show{out: cfg.Out, json: cfg.JSON, colour: cfg.Colour, names: cfg.Concurrency > 1 || len(cfg.AgentIDs) != 1}}
	r.model, err = newModel(cfg, hc)
	return r, err
}

// Run takes turns until ctx ends, MaxTurns are done, or no further turn would go
// better, as with a key that is refused.
func (r *Runner) Run(ctx context.Context) error {
	for _, agentID := range r.cfg.AgentIDs {
		// An agent that is not there would be waited for in silence.
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
		Name: "quartet run " + r.cfg.Provider, AgentIDs: r.cfg.AgentIDs, Concurrency: r.cfg.Concurrency, MaxTurns: r.cfg.MaxTurns,
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

// endError ends the runner with its turn: no other turn would go better.
type endError struct{ text string }

func (e *endError) Error() string { return e.text }

// workspaceOf opens the directory that local file tools work in; nil where there
// is none on this machine, or the agent's profile has no local environment.
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
			return nil, nil // it is on the worker's machine
		}
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return &workspace{root: root}, nil
}

// toolsOf are what the turn may call, as the server describes it, and the local
// file tools.
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
			tools = append(tools, Tool{Name: s.GetName(), Description: s.GetDescription(), Schema: s.GetInputSchema().AsMap()})
		}
	}
	if files {
		tools = append(tools, localTools...)
	}
	return tools, nil
}

func lower(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
