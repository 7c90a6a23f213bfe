package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

func (ss *session) waitCommand() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "wait", Short: "Waits: why something stands still", Aliases: []string{"waits"}})
	c.AddCommand(ss.waitFor(), ss.waitCreate(), ss.waitGet(), ss.waitCancel(), ss.waitList())
	return c
}

func delivery(contentful bool) waitingv1.DeliveryMode {
	if contentful {
		return waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	}
	return waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED
}

func (ss *session) waitFor() *cobra.Command {
	req := &waitingv1.WaitForRequest{}
	var wake, after, at, recheck string
	var contentful bool
	cmd := &cobra.Command{
		Use: "for AGENT REASON", Short: "Make a work item (or the agent) wait", Args: exactly("AGENT", "REASON"),
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
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Reason, req.RequestId, req.DeliveryMode = args[0], args[1], ss.requestID, delivery(contentful)
		switch wake {
		case "operator":
			wake = "operator_input"
		case "task":
			wake = "task_result"
		case "":
			return usage("--wake is missing: operator, task, external or timer")
		}
		var err error
		if req.Wake, err = enum[waitingv1.Wake]("wake", wake); err != nil {
			return err
		}
		if req.After, err = span("after", after); err != nil {
			return err
		}
		if req.At, err = point("at", at); err != nil {
			return err
		}
		if req.RecheckAfter, err = span("recheck", recheck); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).WaitFor(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			wait(p, resp.GetWait())
			p.fields("replaces", resp.GetReplacedWaitId())
			advise(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

func advise(cmd *cobra.Command, warnings []*waitingv1.WaitWarning) {
	for _, w := range warnings {
		cmd.PrintErrf("warning: %s: %s\n", short(w.GetKind()), printable(w.GetMessage()))
	}
}

func wait(p *printer, w *waitingv1.Wait) {
	p.fields(
		"wait", w.GetWaitId(),
		"status", short(w.GetStatus())+because(short(w.GetEndReason())),
		"kind", short(w.GetMode())+" "+short(w.GetKind()),
		"item", w.GetWorkItemId(),
		"reason", printable(w.GetReason()),
		"source", printable(w.GetSource()),
		"condition", printable(w.GetCondition()),
		"resource", printable(w.GetResource()),
		"due", when(w.GetDueAt()),
		"recheck", when(w.GetRecheckAt()),
		"triggered", number(w.GetTriggerCount()),
		"unseen", number(w.GetTriggerCount()-w.GetConsumedCount()),
		"weak", short(w.GetWeakReason()),
	)
}

func (ss *session) waitCreate() *cobra.Command {
	req := &waitingv1.CreateWaitRequest{}
	var contentful bool
	cmd := &cobra.Command{
		Use: "create AGENT CONDITION", Short: "Register an interest that stops nothing", Args: exactly("AGENT", "CONDITION"),
		Example: `  quartet wait create keeper "the review of PR 12 is in" --source github --resource trg_… --item wi_…`,
	}
	cmd.Flags().StringVar(&req.Source, "source", "", "Where the event comes from, such as github")
	cmd.Flags().StringVar(&req.Resource, "resource", "", "The trigger whose deliveries count (default: any of the owner)")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item (default: the agent)")
	cmd.Flags().BoolVar(&contentful, "contentful", false, "What a trigger brings becomes a message")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Condition, req.RequestId, req.DeliveryMode = args[0], args[1], ss.requestID, delivery(contentful)
		resp, err := waitingv1.NewWaitingServiceClient(conn).CreateWait(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			wait(p, resp.GetWait())
			advise(cmd, resp.GetWarnings())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) waitGet() *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT WAIT", Short: "Show a wait or an interest", Args: exactly("AGENT", "WAIT"),
		Example: "  quartet wait get keeper wt_01h455vb4pex5vsknk084sn02q",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			resp, err := waitingv1.NewWaitingServiceClient(conn).GetWait(cmd.Context(), &waitingv1.GetWaitRequest{AgentId: args[0], WaitId: args[1]})
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) { wait(p, resp.GetWait()) })
		}),
	}
}

func (ss *session) waitCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT WAIT", Short: "End a wait or an interest", Args: exactly("AGENT", "WAIT"),
		Example: "  quartet wait cancel keeper wt_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := waitingv1.NewWaitingServiceClient(conn).CancelWait(cmd.Context(), &waitingv1.CancelWaitRequest{AgentId: args[0], WaitId: args[1], RequestId: ss.requestID})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) { wait(p, resp.GetWait()) })
	})
	return ss.mutates(cmd)
}

func (ss *session) waitList() *cobra.Command {
	req := &waitingv1.ListWaitsRequest{}
	var pages paging
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's waits and interests", Args: exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet wait list keeper --all",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.size, pages.token
			resp, err := waitingv1.NewWaitingServiceClient(conn).ListWaits(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, w := range resp.GetWaits() {
					why := w.GetReason()
					if why == "" {
						why = w.GetCondition()
					}
					rows = append(rows, []string{w.GetWaitId(), short(w.GetMode()), short(w.GetKind()), short(w.GetStatus()), number(w.GetTriggerCount()),
						when(w.GetDueAt()), short(w.GetWeakReason()), w.GetWorkItemId(), brief(why, 50)})
				}
				p.table("no waits", []string{"WAIT", "MODE", "KIND", "STATUS", "TRIGGERED", "DUE", "WEAK", "ITEM", "WHY"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "Also those that ended")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only those of this work item")
	pages.flags(cmd)
	return cmd
}

func (ss *session) triggerCommand() *cobra.Command {
	c := groupOnly(&cobra.Command{Use: "trigger", Short: "External triggers: addresses for outside systems", Aliases: []string{"triggers"}})
	c.AddCommand(ss.triggerCreate(), ss.triggerRotate(), ss.triggerCancel(), ss.triggerList(), ss.triggerDeliver())
	return c
}

func (ss *session) triggerCreate() *cobra.Command {
	req := &waitingv1.CreateExternalTriggerRequest{}
	var contentful bool
	var expires, signature, secret string
	cmd := &cobra.Command{
		Use: "create AGENT DESCRIPTION", Short: "Make a secret address that wakes an agent", Args: exactly("AGENT", "DESCRIPTION"),
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
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Description, req.RequestId, req.DeliveryMode = args[0], args[1], ss.requestID, delivery(contentful)
		var err error
		if req.ExpiresAt, err = point("expires", expires); err != nil {
			return err
		}
		if req.SignatureScheme, err = enum[waitingv1.SignatureScheme]("signature", signature); err != nil {
			return err
		}
		if req.SigningSecret, err = signingSecret(cmd, secret); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).CreateExternalTrigger(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret", resp.GetSigningSecret(),
				"expires", when(resp.GetTrigger().GetExpiresAt()))
		})
	})
	return ss.mutates(cmd)
}

func signing(cmd *cobra.Command, secret *string) {
	cmd.Flags().StringVar(secret, "signing-secret", "", `The outside system's own secret: "-" reads stdin, "@FILE" a file`)
}

// signingSecret reads a secret from where other users of the machine do not see it.
func signingSecret(cmd *cobra.Command, text string) (string, error) {
	if text != "" && text != "-" && !strings.HasPrefix(text, "@") {
		return "", usage(`--signing-secret takes "-" (stdin) or "@FILE": everybody on this machine can read a command line`)
	}
	secret, err := content(cmd, text)
	return strings.TrimSpace(secret), err
}

func (ss *session) triggerRotate() *cobra.Command {
	var secret string
	cmd := &cobra.Command{
		Use: "rotate AGENT TRIGGER", Short: "Replace a trigger's secret", Args: exactly("AGENT", "TRIGGER"),
		Long: `Replace the secret, and with it the address, for when it leaked. Waits and counts
stay. Deliveries to the old address are refused (403) from then on. A signing
secret that was made here is replaced too; one of the outside system's stays
unless --signing-secret brings a new one.`,
		Example: "  quartet trigger rotate keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	signing(cmd, &secret)
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req := &waitingv1.RotateExternalTriggerRequest{AgentId: args[0], TriggerId: args[1], RequestId: ss.requestID}
		var err error
		if req.SigningSecret, err = signingSecret(cmd, secret); err != nil {
			return err
		}
		resp, err := waitingv1.NewWaitingServiceClient(conn).RotateExternalTrigger(cmd.Context(), req)
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret", resp.GetSigningSecret())
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) triggerCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT TRIGGER", Short: "Kill the address", Args: exactly("AGENT", "TRIGGER"),
		Example: "  quartet trigger cancel keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		resp, err := waitingv1.NewWaitingServiceClient(conn).CancelExternalTrigger(cmd.Context(),
			&waitingv1.CancelExternalTriggerRequest{AgentId: args[0], TriggerId: args[1], RequestId: ss.requestID})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("%s %s\n", resp.GetTrigger().GetTriggerId(), short(resp.GetTrigger().GetStatus()))
		})
	})
	return ss.mutates(cmd)
}

func (ss *session) triggerList() *cobra.Command {
	req := &waitingv1.ListExternalTriggersRequest{}
	var pages paging
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's triggers, without their secrets", Args: exactly("AGENT"), Aliases: []string{"ls"},
		Example: "  quartet trigger list keeper",
		RunE: ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
			req.AgentId, req.PageSize, req.PageToken = args[0], pages.size, pages.token
			resp, err := waitingv1.NewWaitingServiceClient(conn).ListExternalTriggers(cmd.Context(), req)
			if err != nil {
				return err
			}
			return ss.show(cmd, resp, func(p *printer) {
				var rows [][]string
				for _, t := range resp.GetTriggers() {
					rows = append(rows, []string{t.GetTriggerId(), short(t.GetStatus()), number(t.GetDeliveryCount()), number(t.GetCoalescedCount()), number(t.GetIgnoredCount()),
						when(t.GetLastDeliveredAt()), when(t.GetExpiresAt()), short(t.GetSignatureScheme()), t.GetWorkItemId(), brief(t.GetDescription(), 50)})
				}
				p.table("no triggers", []string{"TRIGGER", "STATUS", "DELIVERIES", "COALESCED", "IGNORED", "LAST", "EXPIRES", "SIGNATURE", "ITEM", "DESCRIPTION"}, rows)
				p.next(resp.GetNextPageToken())
			})
		}),
	}
	cmd.Flags().BoolVar(&req.IncludeRevoked, "all", false, "Also the revoked and the expired ones")
	pages.flags(cmd)
	return cmd
}

func (ss *session) triggerDeliver() *cobra.Command {
	var data, contentType string
	cmd := &cobra.Command{
		Use: "deliver URL|TOKEN", Short: "Deliver to a trigger, as an outside system would", Args: exactly("URL|TOKEN"),
		Example: `  quartet trigger deliver "$URL" --data '{"status":"green"}' --content-type application/json`,
	}
	cmd.Flags().StringVarP(&data, "data", "d", "", `The body; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringVar(&contentType, "content-type", "text/plain", "What the body is")
	cmd.RunE = ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		body, err := content(cmd, data)
		if err != nil {
			return err
		}
		token := args[0][strings.LastIndexByte(args[0], '/')+1:]
		resp, err := waitingv1.NewWaitingServiceClient(conn).DeliverTrigger(cmd.Context(), &waitingv1.DeliverTriggerRequest{
			Token: token, RequestId: ss.requestID, ContentType: contentType, Body: []byte(body),
		})
		if err != nil {
			return err
		}
		return ss.show(cmd, resp, func(p *printer) {
			p.printf("%s%s\n", short(resp.GetOutcome()), because(resp.GetReason()))
		})
	})
	return ss.mutates(cmd)
}
