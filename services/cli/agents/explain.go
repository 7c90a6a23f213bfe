package agents

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/events"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// ExplainCommand returns `quartet explain`.
func ExplainCommand(s *session.Session) *cobra.Command {
	var follow, history bool
	var limit time.Duration
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "explain AGENT", Short: "Show what the scheduler decides about an agent, and why",
		Args: input.Exactly("AGENT"),
		Long: `Compute from the current facts what the scheduler decides about an agent, and show
the reasons for the agent and for each of its work items. Nothing is changed.

--follow then prints each decision that is recorded, until ^C or --timeout.
--history lists the newest recorded decisions, up to 100; all of them are among
the events, as decision_recorded.`,
		Example: `  quartet explain keeper
  quartet explain keeper --follow
  quartet explain keeper --history --page-size 100`,
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "Then print each new decision")
	f.DurationVar(&limit, "timeout", 0, "With --follow: stop after this time; 0: never")
	f.BoolVar(&history, "history", false, "List the recorded decisions instead")
	pages.Flags(cmd)
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if history {
			return listDecisions(s, cmd, conn, args[0], pages)
		}
		resp, err := schedulerv1.NewSchedulerServiceClient(conn).Explain(cmd.Context(), &schedulerv1.ExplainRequest{
			AgentId: args[0],
		})
		if err != nil {
			return err
		}
		if !follow {
			return s.Show(cmd, resp, func(p *output.Printer) { WriteExplanation(p, resp) })
		}
		ctx, cancel := session.WithTimeout(cmd, limit)
		defer cancel()
		return followDecisions(ctx, s, cmd, conn, resp)
	})
	return cmd
}

// listDecisions lists the recorded decisions, newest first.
func listDecisions(s *session.Session, cmd *cobra.Command, conn *grpc.ClientConn, agentID string,
	pages input.Paging,
) error {
	resp, err := agentv1.NewAgentServiceClient(conn).ListDecisions(cmd.Context(), &agentv1.ListDecisionsRequest{
		AgentId: agentID, PageSize: pages.Size, PageToken: pages.Token,
	})
	if err != nil {
		return err
	}
	return s.Show(cmd, resp, func(p *output.Printer) {
		for _, d := range resp.GetDecisions() {
			writeDecision(p, p.Time(d.GetDecidedAt()), pbjson.EnumText(d.GetAction()), d.GetReason(),
				d.GetExplanation())
		}
		if len(resp.GetDecisions()) == 0 {
			p.Printf("no decisions\n")
		}
		p.NextPage(resp.GetNextPageToken())
	})
}

// followDecisions prints the current decision and each one that is recorded later.
func followDecisions(ctx context.Context, s *session.Session, cmd *cobra.Command, conn *grpc.ClientConn,
	resp *schedulerv1.ExplainResponse,
) error {
	p := s.Printer(cmd)
	if s.JSON() {
		p.JSONLine(resp)
	} else {
		WriteExplanation(p, resp)
		p.Printf("\n%s\n", p.Paint(terminal.Bold, "From now on"))
	}
	return (&events.Follower{
		Cmd: cmd, Conn: conn,
		Request: &eventv1.WatchEventsRequest{
			AgentId: resp.GetAgentId(), Planes: []string{"agent"},
			EventTypes: []string{"decision_recorded"},
		},
		Receive: func(m *eventv1.WatchEventsResponse) error {
			d := m.GetEvent().GetPayload().GetFields()["decision"].GetStructValue().GetFields()
			switch {
			case m.GetEvent() == nil:
			case s.JSON():
				p.JSONLine(m)
			default:
				writeDecision(p, p.Time(m.GetEvent().GetCreatedAt()), d["action"].GetStringValue(),
					d["reason"].GetStringValue(), d["explanation"].GetStringValue())
			}
			return p.Err()
		},
	}).Run(ctx)
}

// writeDecision writes one recorded decision as a line: its explanation, or the action and the reason if it has
// none. An explanation already starts with the action, or with the reason of a tick.
func writeDecision(p *output.Printer, at, action, reason, explanation string) {
	text := explanation
	if text == "" {
		text = action + ": " + reason
	}
	p.Printf("  %s  %s\n", p.Paint(terminal.Dim, at),
		paintHead(p, actionColour(action), output.Shorten(text, max(p.Columns()-24, 60))))
}

// paintHead colours a sentence up to its first colon, or as a whole if it has none.
func paintHead(p *output.Printer, colour, sentence string) string {
	head, rest, ok := strings.Cut(sentence, ":")
	if !ok {
		return p.Paint(colour, sentence)
	}
	return p.Paint(colour, head+":") + rest
}

// WriteExplanation writes an explanation for people: the verdict first, because most
// readers need nothing else.
func WriteExplanation(p *output.Printer, r *schedulerv1.ExplainResponse) {
	v := r.GetVerdict()
	sentence := v.GetExplanation()
	if sentence == "" {
		sentence = v.GetReason()
	}
	p.Printf("%s %s\n", p.Paint(terminal.Bold, r.GetAgentId()+":"),
		paintHead(p, actionColour(pbjson.EnumText(v.GetAction())), terminal.Printable(sentence)))
	p.Printf("%s\n", p.Paint(terminal.Dim, verdictCodes(v)))
	for _, line := range output.RemedyCommands(sentence, output.RemedyValues{"AGENT": r.GetAgentId()}) {
		p.Printf("fix: %s\n", line)
	}

	if len(r.GetCandidates()) > 0 {
		p.Printf("\n%s\n", p.Paint(terminal.Bold, "Work items"))
	}
	for _, c := range r.GetCandidates() {
		sign, colour := "-", terminal.Dim
		if c.GetChosen() {
			sign, colour = ">", terminal.Green
		}
		p.Printf("%s %s  %s\n", p.Paint(colour, sign), p.Paint(terminal.Bold, output.Shorten(c.GetObjective(), 72)),
			p.Paint(terminal.Dim, c.GetWorkItemId()))
		p.Printf("    %s\n", output.StateWithReason(c.GetSchedulingState(), c.GetReasonCode()))
		p.Printf("    %s\n", terminal.Printable(c.GetWhy()))
	}

	if len(r.GetFacts()) > 0 {
		p.Printf("\n%s\n", p.Paint(terminal.Bold, "Facts"))
		var pairs []string
		for _, f := range r.GetFacts() {
			value := f.GetValue()
			if value == "" {
				value = "-"
			}
			pairs = append(pairs, "  "+f.GetName(), terminal.Printable(value))
		}
		p.Fields(pairs...)
	}

	if len(r.GetRecent()) > 0 {
		p.Printf("\n%s\n", p.Paint(terminal.Bold, "Recent decisions"))
	}
	for _, d := range r.GetRecent() {
		writeDecision(p, p.Time(d.GetDecidedAt()), pbjson.EnumText(d.GetAction()), d.GetReason(), d.GetExplanation())
	}
}

// verdictCodes lists the codes of a verdict: action, reason of the tick, rule and
// work item.
func verdictCodes(v *schedulerv1.Verdict) string {
	text := "decision: " + pbjson.EnumText(v.GetAction())
	if tick := pbjson.EnumText(v.GetTickReason()); tick != "" {
		text += " " + tick
	}
	text += ", rule: " + v.GetReason()
	if v.GetWorkItemId() != "" {
		text += ", item: " + v.GetWorkItemId()
	}
	return text
}

// actionColour returns the colour of an action.
func actionColour(action string) string {
	switch action {
	case "dispatch", "tick":
		return terminal.Green
	case "idle":
		return terminal.Yellow
	case "nothing":
		return terminal.Red
	}
	return terminal.Bold
}
