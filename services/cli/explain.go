package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
)

func (ss *session) explainCommand() *cobra.Command {
	var follow, history bool
	var limit time.Duration
	var pages paging
	cmd := &cobra.Command{
		Use: "explain AGENT", Short: "Say why an agent does what it does, or nothing", Args: exactly("AGENT"),
		Long: `Decide anew, from the facts of this moment, what the scheduler would do about an
agent, and say why, of the agent and of each of its work items. It changes
nothing.

--follow goes on with each decision that is recorded, until ^C or --timeout.
--history lists the decisions that were recorded, the newest 100; all of them
are among the events, as decision_recorded.`,
		Example: `  quartet explain keeper
  quartet explain keeper --follow
  quartet explain keeper --history --page-size 100`,
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "Go on with each new decision")
	f.DurationVar(&limit, "timeout", 0, "With --follow: end after this time; 0: never")
	f.BoolVar(&history, "history", false, "List the recorded decisions instead")
	pages.flags(cmd)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if history {
			return ss.decisions(cmd, conn, args[0], pages)
		}
		resp, err := schedulerv1.NewSchedulerServiceClient(conn).Explain(cmd.Context(), &schedulerv1.ExplainRequest{AgentId: args[0]})
		if err != nil {
			return err
		}
		if !follow {
			return ss.show(cmd, resp, func(p *printer) { explain(p, resp) })
		}
		ctx, cancel := timed(cmd, limit)
		defer cancel()
		return ss.followDecisions(ctx, cmd, conn, resp)
	})
	return cmd
}

// decisions lists what was recorded, newest first.
func (ss *session) decisions(cmd *cobra.Command, conn *grpc.ClientConn, agentID string, pages paging) error {
	resp, err := agentv1.NewAgentServiceClient(conn).ListDecisions(cmd.Context(), &agentv1.ListDecisionsRequest{
		AgentId: agentID, PageSize: pages.size, PageToken: pages.token,
	})
	if err != nil {
		return err
	}
	return ss.show(cmd, resp, func(p *printer) {
		for _, d := range resp.GetDecisions() {
			decided(p, when(d.GetDecidedAt()), short(d.GetAction()), d.GetReason(), d.GetExplanation())
		}
		if len(resp.GetDecisions()) == 0 {
			p.printf("no decisions\n")
		}
		p.next(resp.GetNextPageToken())
	})
}

// followDecisions shows the decision of now and each that is recorded later.
func (ss *session) followDecisions(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn, resp *schedulerv1.ExplainResponse) error {
	p := newPrinter(cmd.OutOrStdout())
	if ss.output == formJSON {
		p.jsonLine(resp)
	} else {
		explain(p, resp)
		p.printf("\n%s\n", p.paint(bold, "From now on"))
	}
	return (&follower{
		cmd: cmd, conn: conn,
		req: &eventv1.WatchEventsRequest{AgentId: resp.GetAgentId(), Planes: []string{"agent"}, EventTypes: []string{"decision_recorded"}},
		take: func(m *eventv1.WatchEventsResponse) error {
			d := m.GetEvent().GetPayload().GetFields()["decision"].GetStructValue().GetFields()
			switch {
			case m.GetEvent() == nil:
			case ss.output == formJSON:
				p.jsonLine(m)
			default:
				decided(p, when(m.GetEvent().GetCreatedAt()), d["action"].GetStringValue(), d["reason"].GetStringValue(), d["explanation"].GetStringValue())
			}
			return p.err
		},
	}).run(ctx)
}

// decided is one line of what was decided once. An explanation begins with its
// action or tick, which need not be said twice.
func decided(p *printer, at, action, reason, explanation string) {
	text := explanation
	if text == "" {
		text = action + ": " + reason
	}
	p.printf("  %s  %s\n", p.paint(dim, at), paintHead(p, actionColour(action), brief(text, max(p.columns()-24, 60))))
}

// paintHead colours a sentence up to its first colon.
func paintHead(p *printer, colour, sentence string) string {
	head, rest, ok := strings.Cut(sentence, ":")
	if !ok {
		return p.paint(colour, sentence)
	}
	return p.paint(colour, head+":") + rest
}

// explain writes the verdict first: most readers need nothing else.
func explain(p *printer, r *schedulerv1.ExplainResponse) {
	v := r.GetVerdict()
	sentence := v.GetExplanation()
	if sentence == "" {
		sentence = v.GetReason()
	}
	p.printf("%s %s\n", p.paint(bold, r.GetAgentId()+":"), paintHead(p, actionColour(short(v.GetAction())), printable(sentence)))
	p.printf("%s\n", p.paint(dim, decision(v)))

	if len(r.GetCandidates()) > 0 {
		p.printf("\n%s\n", p.paint(bold, "Work items"))
	}
	for _, c := range r.GetCandidates() {
		sign, colour := "-", dim
		if c.GetChosen() {
			sign, colour = ">", green
		}
		p.printf("%s %s  %s\n", p.paint(colour, sign), p.paint(bold, brief(c.GetObjective(), 72)), p.paint(dim, c.GetWorkItemId()))
		p.printf("    %s\n", ruled(c.GetSchedulingState(), c.GetReasonCode()))
		p.printf("    %s\n", printable(c.GetWhy()))
	}

	if len(r.GetFacts()) > 0 {
		p.printf("\n%s\n", p.paint(bold, "Facts"))
		var pairs []string
		for _, f := range r.GetFacts() {
			value := f.GetValue()
			if value == "" {
				value = "-"
			}
			pairs = append(pairs, "  "+f.GetName(), printable(value))
		}
		p.fields(pairs...)
	}

	if len(r.GetRecent()) > 0 {
		p.printf("\n%s\n", p.paint(bold, "Recent decisions"))
	}
	for _, d := range r.GetRecent() {
		decided(p, when(d.GetDecidedAt()), short(d.GetAction()), d.GetReason(), d.GetExplanation())
	}
}

// ruled is a state and the rule behind it, where that says more.
func ruled(state, rule string) string {
	if rule == state {
		return state
	}
	return state + because(rule)
}

func decision(v *schedulerv1.Verdict) string {
	text := "decision: " + short(v.GetAction())
	if tick := short(v.GetTickReason()); tick != "" {
		text += " " + tick
	}
	text += ", rule: " + v.GetReason()
	if v.GetWorkItemId() != "" {
		text += ", item: " + v.GetWorkItemId()
	}
	return text
}

func actionColour(action string) string {
	switch action {
	case "dispatch", "tick":
		return green
	case "idle":
		return yellow
	case "nothing":
		return red
	}
	return bold
}
