package waits

import (
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// Command returns `quartet wait`.
func Command(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{Use: "wait", Short: "Waits: why something stands still", Aliases: []string{"waits"}})
	c.AddCommand(waitFor(s), waitCreate(s), waitGet(s), waitCancel(s), waitList(s))
	return c
}

func delivery(contentful bool) waitingv1.DeliveryMode {
	if contentful {
		return waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	}
	return waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED
}

func waitFor(s *session.Session) *cobra.Command {
	req := &waitingv1.WaitForRequest{}
	var wake, after, at, recheck string
	var contentful bool
	cmd := &cobra.Command{
		Use: "for AGENT REASON", Short: "Make a work item (or the agent) wait", Args: input.Exactly("AGENT", "REASON"),
		Long: `Make the named or focused item wait, else the agent itself. The reason becomes
its blocker; the focus is released. An item, and the agent, has one such wait:
a new one takes the place of the old one, and what came for that and was not
looked at yet counts for the new one.

  --wake operator   the next operator's message that names the item, or any if
                    this is the agent's only wait of the kind
  --wake task       the end of --resource TASK
  --wake external   deliveries to --resource TRIGGER, else to any of the owner's;
                    it stays until the agent clears the blocker or completes
  --wake timer      --after or --at, at most 100 years ahead

A wait that nothing can end as things stand is weak, and the answer says so:
make a trigger first, or give --recheck.`,
		Example: `  quartet wait for keeper "CI runs" --wake external --resource trg_… --recheck 2h
  quartet wait for keeper "the build" --wake task --resource tsk_…
  quartet wait for keeper "the office opens" --wake timer --at 2026-02-02T08:00:00Z
  quartet wait for keeper "a decision on the licence" --wake operator --item wi_…`,
	}
	f := cmd.Flags()
	f.StringVar(&wake, "wake", "", "What wakes it: operator, task, external or timer (required)")
	f.StringVar(&req.Resource, "resource", "", "The task, or the trigger, that it waits for")
	f.StringVar(&after, "after", "", "timer: after this long, such as 5m")
	f.StringVar(&at, "at", "", "timer: at this time (RFC 3339)")
	f.StringVar(&recheck, "recheck", "", "Remind the agent after this long although it still waits")
	f.StringVar(&req.WorkItemId, "item", "", "The work item (default: the one in focus)")
	f.BoolVar(&contentful, "contentful", false, "external: what a trigger brings becomes a message")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Reason, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID, delivery(contentful)
		switch wake {
		case "operator":
			wake = "operator_input"
		case "task":
			wake = "task_result"
		case "":
			return exit.UsageError("--wake is missing: operator, task, external or timer")
		}
		var err error
		if req.Wake, err = input.Enum[waitingv1.Wake]("wake", wake); err != nil {
			return err
		}
		if req.After, err = input.Duration("after", after); err != nil {
			return err
		}
		if req.At, err = input.Time("at", at); err != nil {
			return err
		}
		if req.RecheckAfter, err = input.Duration("recheck", recheck); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).WaitFor(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			wait(p, resp.GetWait())
			p.Fields("replaces", resp.GetReplacedWaitId())
			advise(cmd, resp.GetWarnings())
		})
	})
	return s.Mutation(cmd)
}

func advise(cmd *cobra.Command, warnings []*waitingv1.WaitWarning) {
	for _, w := range warnings {
		cmd.PrintErrf("warning: %s: %s\n", pbjson.EnumText(w.GetKind()), output.Printable(w.GetMessage()))
	}
}

func wait(p *output.Printer, w *waitingv1.Wait) {
	p.Fields(
		"wait", w.GetWaitId(),
		"status", pbjson.EnumText(w.GetStatus())+output.Detail(pbjson.EnumText(w.GetEndReason())),
		"kind", pbjson.EnumText(w.GetMode())+" "+pbjson.EnumText(w.GetKind()),
		"item", w.GetWorkItemId(),
		"reason", output.Printable(w.GetReason()),
		"source", output.Printable(w.GetSource()),
		"condition", output.Printable(w.GetCondition()),
		"resource", output.Printable(w.GetResource()),
		"due", output.Time(w.GetDueAt()),
		"recheck", output.Time(w.GetRecheckAt()),
		"triggered", output.Number(w.GetTriggerCount()),
		"unseen", output.Number(w.GetTriggerCount()-w.GetConsumedCount()),
		"weak", pbjson.EnumText(w.GetWeakReason()),
	)
}

func waitCreate(s *session.Session) *cobra.Command {
	req := &waitingv1.CreateWaitRequest{}
	var contentful bool
	cmd := &cobra.Command{
		Use: "create AGENT CONDITION", Short: "Register an interest that stops nothing", Args: input.Exactly("AGENT", "CONDITION"),
		Example: `  quartet wait create keeper "the review of PR 12 is in" --source github --resource trg_… --item wi_…`,
	}
	cmd.Flags().StringVar(&req.Source, "source", "", "Where the event comes from, such as github")
	cmd.Flags().StringVar(&req.Resource, "resource", "", "The trigger whose deliveries count (default: any of the owner)")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item (default: the agent)")
	cmd.Flags().BoolVar(&contentful, "contentful", false, "What a trigger brings becomes a message")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Condition, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID, delivery(contentful)
		resp, err := waitingv1.NewWaitingServiceClient(conn).CreateWait(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			wait(p, resp.GetWait())
			advise(cmd, resp.GetWarnings())
		})
	})
	return s.Mutation(cmd)
}

func waitGet(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT WAIT", Short: "Show a wait or an interest", Args: input.Exactly("AGENT", "WAIT"),
		Example: "  quartet wait get keeper wt_01h455vb4pex5vsknk084sn02q",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := waitingv1.NewWaitingServiceClient(conn).GetWait(cmd.Context(), &waitingv1.GetWaitRequest{AgentId: args[0], WaitId: args[1]})
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) { wait(p, resp.GetWait()) })
		}),
	}
}

func waitCancel(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT WAIT", Short: "End a wait or an interest", Args: input.Exactly("AGENT", "WAIT"),
		Example: "  quartet wait cancel keeper wt_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := waitingv1.NewWaitingServiceClient(conn).CancelWait(cmd.Context(), &waitingv1.CancelWaitRequest{AgentId: args[0], WaitId: args[1], RequestId: s.RequestID})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { wait(p, resp.GetWait()) })
	})
	return s.Mutation(cmd)
}

func waitList(s *session.Session) *cobra.Command {
	req := &waitingv1.ListWaitsRequest{}
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's waits and interests", Args: input.Exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet wait list keeper --all",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			resp, err := waitingv1.NewWaitingServiceClient(conn).ListWaits(cmd.Context(), req)
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) {
				var rows [][]string
				for _, w := range resp.GetWaits() {
					why := w.GetReason()
					if why == "" {
						why = w.GetCondition()
					}
					rows = append(rows, []string{w.GetWaitId(), pbjson.EnumText(w.GetMode()), pbjson.EnumText(w.GetKind()), pbjson.EnumText(w.GetStatus()), output.Number(w.GetTriggerCount()),
						output.Time(w.GetDueAt()), pbjson.EnumText(w.GetWeakReason()), w.GetWorkItemId(), output.Shorten(why, 50)})
				}
				p.Table("no waits", []string{"WAIT", "MODE", "KIND", "STATUS", "TRIGGERED", "DUE", "WEAK", "ITEM", "WHY"}, rows)
				p.NextPage(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "Also those that ended")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only those of this work item")
	pages.Flags(cmd)
	return cmd
}

// TriggerCommand returns `quartet trigger`.
func TriggerCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{Use: "trigger", Short: "External triggers: addresses for outside systems", Aliases: []string{"triggers"}})
	c.AddCommand(triggerCreate(s), triggerRotate(s), triggerCancel(s), triggerList(s), triggerDeliver(s))
	return c
}

func triggerCreate(s *session.Session) *cobra.Command {
	req := &waitingv1.CreateExternalTriggerRequest{}
	var contentful bool
	var expires, signature, secret string
	cmd := &cobra.Command{
		Use: "create AGENT DESCRIPTION", Short: "Make a secret address that wakes an agent", Args: input.Exactly("AGENT", "DESCRIPTION"),
		Long: `Make a secret address. Whoever POSTs to it, at most 256 KiB of anything, wakes
the agent. It is shown once; only the hash of the secret is kept.

With --signature deliveries must also be signed: hub_sha256 is what GitHub calls
the secret of a webhook (X-Hub-Signature-256), standard_webhooks is that of
standardwebhooks.com. A signing secret is made, and shown once, unless the
outside system brings its own.

A delivery that its sender repeats counts once: by Idempotency-Key, or by the id
that GitHub, GitLab, Gitea, Bitbucket, Shopify and others put into a header.`,
		Example: `  quartet trigger create keeper "CI of main" --item wi_… --expires 7d
  quartet trigger create keeper "reviews" --contentful --signature hub_sha256
  quartet trigger create keeper "payments" --signature standard_webhooks --signing-secret @secret.txt
  curl -d '{"build":"green"}' "$URL"`,
	}
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item it is for (default: the agent)")
	cmd.Flags().BoolVar(&contentful, "contentful", false, "What is delivered becomes a message")
	cmd.Flags().StringVar(&expires, "expires", "", "Refuse deliveries after this time or duration")
	cmd.Flags().StringVar(&signature, "signature", "", "Take signed deliveries only: hub_sha256 or standard_webhooks")
	signing(cmd, &secret)
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Description, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID, delivery(contentful)
		var err error
		if req.ExpiresAt, err = input.Time("expires", expires); err != nil {
			return err
		}
		if req.SignatureScheme, err = input.Enum[waitingv1.SignatureScheme]("signature", signature); err != nil {
			return err
		}
		if req.SigningSecret, err = signingSecret(cmd, secret); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).CreateExternalTrigger(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret", resp.GetSigningSecret(),
				"expires", output.Time(resp.GetTrigger().GetExpiresAt()))
		})
	})
	return s.Mutation(cmd)
}

func signing(cmd *cobra.Command, secret *string) {
	cmd.Flags().StringVar(secret, "signing-secret", "", `The outside system's own secret: "-" reads stdin, "@FILE" a file`)
}

// signingSecret reads a secret from where other users of the machine do not see it.
func signingSecret(cmd *cobra.Command, text string) (string, error) {
	if text != "" && text != "-" && !strings.HasPrefix(text, "@") {
		return "", exit.UsageError(`--signing-secret takes "-" (stdin) or "@FILE": everybody on this machine can read a command line`)
	}
	secret, err := input.Text(cmd, text)
	return strings.TrimSpace(secret), err
}

func triggerRotate(s *session.Session) *cobra.Command {
	var secret string
	cmd := &cobra.Command{
		Use: "rotate AGENT TRIGGER", Short: "Replace a trigger's secret", Args: input.Exactly("AGENT", "TRIGGER"),
		Long: `Replace the secret, and with it the address, for when it leaked. Waits and counts
stay. Deliveries to the old address are refused (403) from then on. A signing
secret that was made here is replaced too; one of the outside system's stays
unless --signing-secret brings a new one.`,
		Example: "  quartet trigger rotate keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	signing(cmd, &secret)
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req := &waitingv1.RotateExternalTriggerRequest{AgentId: args[0], TriggerId: args[1], RequestId: s.RequestID}
		var err error
		if req.SigningSecret, err = signingSecret(cmd, secret); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).RotateExternalTrigger(cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret", resp.GetSigningSecret())
		})
	})
	return s.Mutation(cmd)
}

func triggerCancel(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT TRIGGER", Short: "Kill the address", Args: input.Exactly("AGENT", "TRIGGER"),
		Example: "  quartet trigger cancel keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := waitingv1.NewWaitingServiceClient(conn).CancelExternalTrigger(cmd.Context(),
			&waitingv1.CancelExternalTriggerRequest{AgentId: args[0], TriggerId: args[1], RequestId: s.RequestID})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s %s\n", resp.GetTrigger().GetTriggerId(), pbjson.EnumText(resp.GetTrigger().GetStatus()))
		})
	})
	return s.Mutation(cmd)
}

func triggerList(s *session.Session) *cobra.Command {
	req := &waitingv1.ListExternalTriggersRequest{}
	var pages input.Paging
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's triggers, without their secrets", Args: input.Exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet trigger list keeper",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.Size, pages.Token
			resp, err := waitingv1.NewWaitingServiceClient(conn).ListExternalTriggers(cmd.Context(), req)
			if err != nil {
				return err
			}
			return s.Show(cmd, resp, func(p *output.Printer) {
				var rows [][]string
				for _, t := range resp.GetTriggers() {
					rows = append(rows, []string{t.GetTriggerId(), pbjson.EnumText(t.GetStatus()), output.Number(t.GetDeliveryCount()), output.Number(t.GetCoalescedCount()), output.Number(t.GetIgnoredCount()),
						output.Time(t.GetLastDeliveredAt()), output.Time(t.GetExpiresAt()), pbjson.EnumText(t.GetSignatureScheme()), t.GetWorkItemId(), output.Shorten(t.GetDescription(), 50)})
				}
				p.Table("no triggers", []string{"TRIGGER", "STATUS", "DELIVERIES", "COALESCED", "IGNORED", "LAST", "EXPIRES", "SIGNATURE", "ITEM", "DESCRIPTION"}, rows)
				p.NextPage(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeRevoked, "all", false, "Also the revoked and the expired ones")
	pages.Flags(cmd)
	return cmd
}

func triggerDeliver(s *session.Session) *cobra.Command {
	var data, contentType string
	cmd := &cobra.Command{
		Use: "deliver URL|TOKEN", Short: "Deliver to a trigger, as an outside system would", Args: input.Exactly("URL|TOKEN"),
		Example: `  quartet trigger deliver "$URL" --data '{"status":"green"}' --content-type application/json`,
	}
	cmd.Flags().StringVarP(&data, "data", "d", "", `The body; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringVar(&contentType, "content-type", "text/plain", "What the body is")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		body, err := input.Text(cmd, data)
		if err != nil {
			return err
		}
		token := args[0][strings.LastIndexByte(args[0], '/')+1:]
		resp, err := waitingv1.NewWaitingServiceClient(conn).DeliverTrigger(cmd.Context(), &waitingv1.DeliverTriggerRequest{
			Token: token, RequestId: s.RequestID, ContentType: contentType, Body: []byte(body),
		})
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) {
			p.Printf("%s%s\n", pbjson.EnumText(resp.GetOutcome()), output.Detail(resp.GetReason()))
		})
	})
	return s.Mutation(cmd)
}
