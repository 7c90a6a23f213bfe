package work

import (
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// WaitCommand returns `quartet wait`.
func WaitCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "wait", Short: "Waits: why work is stopped, and what resumes it",
		Aliases: []string{"waits"},
	})
	c.AddCommand(waitFor(s), waitCreate(s), waitGet(s), waitCancel(s), waitList(s))
	return c
}

// deliveryMode returns the mode for the flag --contentful; unset, it is left to the server.
func deliveryMode(contentful bool) waitingv1.DeliveryMode {
	if contentful {
		return waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	}
	return waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED
}

// waitFor returns `quartet wait for`.
func waitFor(s *session.Session) *cobra.Command {
	req := &waitingv1.WaitForRequest{}
	var wake, after, at, recheck string
	var contentful bool
	cmd := &cobra.Command{
		Use: "for AGENT REASON", Short: "Make a work item (or the agent) wait", Args: input.Exactly("AGENT", "REASON"),
		Long: `Make the named item wait, else the item in focus, else the agent itself. The
reason becomes the item's blocker, and the item loses the focus. An item and an
agent have one such wait each: a new wait replaces it and takes over the
deliveries that no turn has shown yet.

  --wake operator   the next operator's message that names the item, or any
                    message if this is the agent's only wait of this kind
  --wake task       the end of --resource TASK
  --wake external   deliveries to --resource TRIGGER, else to any trigger of the
                    owner; the wait stays until the agent clears the blocker or
                    completes the item
  --wake timer      --after or --at, at most 100 years ahead

A wait that nothing can end at present is weak, and a warning says so. Create a
trigger first, or give --recheck.`,
		Example: `  quartet wait for keeper "CI runs" --wake external --resource trg_… --recheck 2h
  quartet wait for keeper "the build" --wake task --resource tsk_…
  quartet wait for keeper "the office opens" --wake timer --at 2026-02-02T08:00:00Z
  quartet wait for keeper "a decision on the licence" --wake operator --item wi_…`,
	}
	f := cmd.Flags()
	f.StringVar(&wake, "wake", "", "What ends the wait: operator, task, external or timer (required)")
	input.Choices(cmd, "wake", "operator", "task", "external", "timer")
	f.StringVar(&req.Resource, "resource", "", "The id of the task or trigger to wait for")
	f.StringVar(&after, "after", "", "With --wake timer: after this duration, such as 5m")
	f.StringVar(&at, "at", "", "With --wake timer: at this time (RFC 3339)")
	f.StringVar(&recheck, "recheck", "", "Remind the agent after this duration if it still waits")
	f.StringVar(&req.WorkItemId, "item", "", "The work item (default: the one in focus)")
	f.BoolVar(&contentful, "contentful", false, "With --wake external: put the content of each delivery into the "+
		"lane as a message")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Reason, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID,
			deliveryMode(contentful)
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
		if req.At, err = input.Time("at", at, s.Zone()); err != nil {
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
			writeWait(p, resp.GetWait())
			p.Fields("replaces", resp.GetReplacedWaitId())
			output.Warnings(cmd, resp.GetWarnings())
		})
	})
	return s.Mutation(cmd)
}

// writeWait writes all fields of a wait or an intent.
func writeWait(p *output.Printer, w *waitingv1.Wait) {
	p.Fields(
		"wait", w.GetWaitId(),
		"status", pbjson.EnumText(w.GetStatus())+output.Detail(pbjson.EnumText(w.GetEndReason())),
		"kind", pbjson.EnumText(w.GetMode())+" "+pbjson.EnumText(w.GetKind()),
		"item", w.GetWorkItemId(),
		"reason", terminal.Printable(w.GetReason()),
		"source", terminal.Printable(w.GetSource()),
		"condition", terminal.Printable(w.GetCondition()),
		"resource", terminal.Printable(w.GetResource()),
		"due", p.Time(w.GetDueAt()),
		"recheck", p.Time(w.GetRecheckAt()),
		"triggered", output.Number(w.GetTriggerCount()),
		"unseen", output.Number(w.GetTriggerCount()-w.GetConsumedCount()),
		"weak", pbjson.EnumText(w.GetWeakReason()),
	)
}

// waitCreate returns `quartet wait create`.
func waitCreate(s *session.Session) *cobra.Command {
	req := &waitingv1.CreateWaitRequest{}
	var contentful bool
	cmd := &cobra.Command{
		Use: "create AGENT CONDITION", Short: "Register an interest in deliveries, which stops no work",
		Args:    input.Exactly("AGENT", "CONDITION"),
		Example: `  quartet wait create keeper "the review of PR 12 is in" --source github --resource trg_… --item wi_…`,
	}
	cmd.Flags().StringVar(&req.Source, "source", "", "The outside system, such as github")
	cmd.Flags().StringVar(&req.Resource, "resource", "", "Only deliveries to this trigger (default: to any trigger "+
		"of the owner)")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item (default: the agent)")
	cmd.Flags().BoolVar(&contentful, "contentful", false, "Put the content of each delivery into the lane as a message")
	cmd.RunE = session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.CreateWait,
		func(args []string) (*waitingv1.CreateWaitRequest, error) {
			req.AgentId, req.Condition, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID,
				deliveryMode(contentful)
			return req, nil
		},
		func(p *output.Printer, resp *waitingv1.CreateWaitResponse) {
			writeWait(p, resp.GetWait())
			output.Warnings(cmd, resp.GetWarnings())
		})
	return s.Mutation(cmd)
}

// waitGet returns `quartet wait get`.
func waitGet(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT WAIT", Short: "Show a wait or an interest", Args: input.Exactly("AGENT", "WAIT"),
		Example: "  quartet wait get keeper wt_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.GetWait,
			func(args []string) (*waitingv1.GetWaitRequest, error) {
				return &waitingv1.GetWaitRequest{AgentId: args[0], WaitId: args[1]}, nil
			},
			func(p *output.Printer, resp *waitingv1.GetWaitResponse) { writeWait(p, resp.GetWait()) }),
	}
}

// waitCancel returns `quartet wait cancel`.
func waitCancel(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT WAIT", Short: "End a wait or an interest", Args: input.Exactly("AGENT", "WAIT"),
		Example: "  quartet wait cancel keeper wt_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.CancelWait,
		func(args []string) (*waitingv1.CancelWaitRequest, error) {
			return &waitingv1.CancelWaitRequest{AgentId: args[0], WaitId: args[1], RequestId: s.RequestID}, nil
		},
		func(p *output.Printer, resp *waitingv1.CancelWaitResponse) { writeWait(p, resp.GetWait()) })
	return s.Mutation(cmd)
}

// waitList returns `quartet wait list`.
func waitList(s *session.Session) *cobra.Command {
	req := &waitingv1.ListWaitsRequest{}
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's waits and interests", Args: input.Exactly("AGENT"),
		Aliases: []string{"ls"},
		Example: "  quartet wait list keeper --all",
	}
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "Include ended ones")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only waits of this work item")
	return session.List(s, cmd, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.ListWaits,
		func(args []string) (*waitingv1.ListWaitsRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		(*waitingv1.ListWaitsResponse).GetWaits, "no waits",
		[]string{"WAIT", "MODE", "KIND", "STATUS", "TRIGGERED", "DUE", "WEAK", "ITEM", "WHY"},
		func(p *output.Printer, w *waitingv1.Wait) []string {
			why := w.GetReason()
			if why == "" {
				why = w.GetCondition()
			}
			return []string{
				w.GetWaitId(), pbjson.EnumText(w.GetMode()), pbjson.EnumText(w.GetKind()),
				pbjson.EnumText(w.GetStatus()), output.Number(w.GetTriggerCount()),
				p.Time(w.GetDueAt()), pbjson.EnumText(w.GetWeakReason()), w.GetWorkItemId(), output.Flexible(why),
			}
		}, session.Hidden(&req.IncludeEnded))
}

// TriggerCommand returns `quartet trigger`.
func TriggerCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "trigger", Short: "External triggers: secret URLs for outside systems",
		Aliases: []string{"triggers"},
	})
	c.AddCommand(triggerCreate(s), triggerGet(s), triggerRotate(s), triggerCancel(s), triggerList(s), triggerDeliver(s))
	return c
}

// triggerCreate returns `quartet trigger create`.
func triggerCreate(s *session.Session) *cobra.Command {
	req := &waitingv1.CreateExternalTriggerRequest{}
	var contentful bool
	var expires, signature, secret string
	cmd := &cobra.Command{
		Use: "create AGENT DESCRIPTION", Short: "Create a secret URL that wakes an agent",
		Args: input.Exactly("AGENT", "DESCRIPTION"),
		Long: `Create a secret URL. A POST to it with any body of at most 256 KiB wakes the agent.
The URL is shown only now; the server stores a hash of the secret.

With --signature, deliveries must also be signed: hub_sha256 is the scheme of
GitHub's webhooks with a secret (X-Hub-Signature-256), standard_webhooks that of
standardwebhooks.com. The signing secret is generated and shown only now, unless
--signing-secret gives the one of the outside system.

A delivery that its sender repeats counts once. It is recognised by its
Idempotency-Key, or by the id that GitHub, GitLab, Gitea, Bitbucket, Shopify and
others put into a header.`,
		Example: `  quartet trigger create keeper "CI of main" --item wi_… --expires 7d
  quartet trigger create keeper "reviews" --contentful --signature hub_sha256
  quartet trigger create keeper "payments" --signature standard_webhooks --signing-secret @secret.txt
  curl -d '{"build":"green"}' "$URL"`,
	}
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "The work item that it wakes (default: the agent)")
	cmd.Flags().BoolVar(&contentful, "contentful", false, "Put the content of each delivery into the lane as a message")
	cmd.Flags().StringVar(&expires, "expires", "", "Refuse deliveries after this time or duration")
	cmd.Flags().StringVar(&signature, "signature", "", "Accept only signed deliveries: hub_sha256 or standard_webhooks")
	input.EnumChoices[waitingv1.SignatureScheme](cmd, "signature")
	signingFlag(cmd, &secret)
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.Description, req.RequestId, req.DeliveryMode = args[0], args[1], s.RequestID,
			deliveryMode(contentful)
		var err error
		if req.ExpiresAt, err = input.Time("expires", expires, s.Zone()); err != nil {
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
			p.Fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret",
				resp.GetSigningSecret(),
				"expires", p.Time(resp.GetTrigger().GetExpiresAt()))
		})
	})
	return s.Mutation(cmd)
}

// signingFlag declares --signing-secret.
func signingFlag(cmd *cobra.Command, secret *string) {
	cmd.Flags().StringVar(secret, "signing-secret", "",
		`The signing secret of the outside system: "-" reads stdin, "@FILE" a file`)
}

// signingSecret reads a secret from stdin or a file. It refuses one on the command
// line, which other users of the machine can read.
func signingSecret(cmd *cobra.Command, text string) (string, error) {
	if text != "" && text != "-" && !strings.HasPrefix(text, "@") {
		return "",
			exit.UsageError(
				`--signing-secret takes "-" (stdin) or "@FILE": everybody on this machine can read a command line`)
	}
	secret, err := input.Text(cmd, text)
	return strings.TrimSpace(secret), err
}

// triggerRotate returns `quartet trigger rotate`.
func triggerRotate(s *session.Session) *cobra.Command {
	var secret string
	cmd := &cobra.Command{
		Use: "rotate AGENT TRIGGER", Short: "Replace a trigger's secret", Args: input.Exactly("AGENT", "TRIGGER"),
		Long: `Replace the secret, and with it the URL, for example after it leaked. Waits and
counters do not change. Deliveries to the old URL are refused (403) from now on. A
generated signing secret is replaced too; one of the outside system is kept unless
--signing-secret gives a new one.`,
		Example: "  quartet trigger rotate keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	signingFlag(cmd, &secret)
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
			p.Fields("trigger", resp.GetTrigger().GetTriggerId(), "url", resp.GetUrl(), "signing secret",
				resp.GetSigningSecret())
		})
	})
	return s.Mutation(cmd)
}

// triggerCancel returns `quartet trigger cancel`.
func triggerCancel(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel AGENT TRIGGER", Short: "Revoke a trigger: its URL is refused from now on",
		Args:    input.Exactly("AGENT", "TRIGGER"),
		Example: "  quartet trigger cancel keeper trg_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.CancelExternalTrigger,
		func(args []string) (*waitingv1.CancelExternalTriggerRequest, error) {
			return &waitingv1.CancelExternalTriggerRequest{
				AgentId: args[0], TriggerId: args[1],
				RequestId: s.RequestID,
			}, nil
		},
		func(p *output.Printer, resp *waitingv1.CancelExternalTriggerResponse) {
			p.Printf("%s %s\n", resp.GetTrigger().GetTriggerId(), pbjson.EnumText(resp.GetTrigger().GetStatus()))
		})
	return s.Mutation(cmd)
}

// triggerGet returns `quartet trigger get`.
func triggerGet(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT TRIGGER", Short: "Show a trigger, without its secret", Args: input.Exactly("AGENT", "TRIGGER"),
		Example: "  quartet trigger get keeper trg_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.GetExternalTrigger,
			func(args []string) (*waitingv1.GetExternalTriggerRequest, error) {
				return &waitingv1.GetExternalTriggerRequest{AgentId: args[0], TriggerId: args[1]}, nil
			},
			func(p *output.Printer, resp *waitingv1.GetExternalTriggerResponse) {
				p.Table("no trigger", triggerColumns, [][]string{triggerRow(p, resp.GetTrigger())})
			}),
	}
}

// triggerList returns the command `quartet trigger list`.
func triggerList(s *session.Session) *cobra.Command {
	req := &waitingv1.ListExternalTriggersRequest{}
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's triggers, without their secrets", Args: input.Exactly("AGENT"),
		Aliases: []string{"ls"},
		Example: "  quartet trigger list keeper",
	}
	cmd.Flags().BoolVar(&req.IncludeRevoked, "all", false, "Include revoked and expired ones")
	return session.List(s, cmd, waitingv1.NewWaitingServiceClient, waitingv1.WaitingServiceClient.ListExternalTriggers,
		func(args []string) (*waitingv1.ListExternalTriggersRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		(*waitingv1.ListExternalTriggersResponse).GetTriggers, "no triggers",
		triggerColumns, triggerRow, session.Hidden(&req.IncludeRevoked))
}

// triggerColumns is the header of a table of triggers.
var triggerColumns = []string{
	"TRIGGER", "STATUS", "DELIVERIES", "COALESCED", "IGNORED", "LAST", "EXPIRES", "SIGNATURE",
	"ITEM", "DESCRIPTION",
}

// triggerRow returns the cells of a trigger below triggerColumns.
func triggerRow(p *output.Printer, t *waitingv1.Trigger) []string {
	return []string{
		t.GetTriggerId(), pbjson.EnumText(t.GetStatus()), output.Number(t.GetDeliveryCount()),
		output.Number(t.GetCoalescedCount()), output.Number(t.GetIgnoredCount()),
		p.Time(t.GetLastDeliveredAt()), p.Time(t.GetExpiresAt()), pbjson.EnumText(t.GetSignatureScheme()),
		t.GetWorkItemId(), output.Flexible(t.GetDescription()),
	}
}

// triggerDeliver returns `quartet trigger deliver`.
func triggerDeliver(s *session.Session) *cobra.Command {
	var data, contentType string
	cmd := &cobra.Command{
		Use: "deliver URL|TOKEN", Short: "Deliver to a trigger, as an outside system would",
		Args:    input.Exactly("URL|TOKEN"),
		Example: `  quartet trigger deliver "$URL" --data '{"status":"green"}' --content-type application/json`,
	}
	cmd.Flags().StringVarP(&data, "data", "d", "", `The body; "-" reads stdin, "@FILE" a file`)
	cmd.Flags().StringVar(&contentType, "content-type", "text/plain", "Content type of the body")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		body, err := input.Text(cmd, data)
		if err != nil {
			return err
		}
		token := args[0][strings.LastIndexByte(args[0], '/')+1:]
		resp, err := waitingv1.NewWaitingServiceClient(conn).DeliverTrigger(cmd.Context(),
			&waitingv1.DeliverTriggerRequest{
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
