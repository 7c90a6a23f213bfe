package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
)

func (ss *session) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain AGENT", Short: "Say why an agent does what it does, or nothing", Args: exactly("AGENT"),
		Long: `Decide anew, from the facts of this moment, what the scheduler would do about an
agent, and say why. It changes nothing.`,
		Example: "  quartet explain keeper",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := schedulerv1.NewSchedulerServiceClient(conn).Explain(cmd.Context(), &schedulerv1.ExplainRequest{AgentId: args[0]})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) { explain(p, resp) })
		}),
	}
}

// explain writes the verdict first: most readers need nothing else.
func explain(p *printer, r *schedulerv1.ExplainResponse) {
	v := r.GetVerdict()
	sentence := v.GetExplanation()
	if sentence == "" {
		sentence = v.GetReason()
	}
	p.printf("%s %s\n", p.paint(bold, r.GetAgentId()+":"), p.paint(actionColour(v.GetAction()), printable(sentence)))
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
		text := d.GetExplanation()
		if text == "" {
			text = d.GetReason()
		}
		p.printf("  %s  %s  %s\n", p.paint(dim, when(d.GetDecidedAt())), p.paint(actionColour(d.GetAction()), d.GetAction()), brief(text, 90))
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
	text := "decision: " + v.GetAction()
	if v.GetTickReason() != "" {
		text += " " + v.GetTickReason()
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
