package toolcalls

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/retry"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/tools"
)

// RoundTimeout is how long the calls of one round may take together (SPEC T1).
const RoundTimeout = 45 * time.Second

// Call executes one tool call as the agent in its run. It always returns a result; a
// failure is one too.
func (s *Service) Call(ctx context.Context, scope tools.Scope, c *agentv1.ToolCall) tools.Outcome {
	return s.CallAs(ctx, access.RunActor(scope.Agent, scope.RunID), scope, c)
}

// CallAs executes one tool call with the given actor and scope. Refusals are results; CallAs
// itself does not fail.
func (s *Service) CallAs(ctx context.Context, actor rpc.Actor, scope tools.Scope, c *agentv1.ToolCall) tools.Outcome {
	out := tools.Outcome{WorkItemID: scope.WorkItemID}

	// Find the tool among those of the agent's profile.
	var t tools.Tool
	profile, err := s.Profile(ctx, scope.Agent)
	if err == nil {
		t, err = profile.Find(c.GetName())
	}
	if err != nil {
		out.Result = tools.Failed(c, err)
		return out
	}

	// Call its method. The result speaks of tools, not of methods.
	req, err := s.request(ctx, actor, scope, t, c)
	if err != nil {
		out.Result = tools.Failed(c, err)
	} else {
		out = s.send(rpc.WithActor(ctx, actor), scope, t, c, req)
	}
	t.Reword(out.Result)
	return out
}

// request returns the request of a call, or the reason for which the actor may not make the call.
func (s *Service) request(ctx context.Context, actor rpc.Actor, scope tools.Scope, t tools.Tool, c *agentv1.ToolCall) (
	proto.Message, error,
) {
	if !s.may(actor.Role, t) {
		return nil, fault.ToolNotAvailable.Newf("tool %q is not for role %s; an agent has it in its turns", c.GetName(),
			actor.Role).With("tool", c.GetName()).With("role", actor.Role)
	}
	req, err := t.Request(scope, c.GetArguments())
	if err != nil {
		return nil, err
	}
	if scope.TurnID == "" && t.TakesFocus(req) {
		if err := s.focus(ctx, actor, scope, t, req); err != nil {
			return nil, err
		}
	}
	if s.deps.Within == nil {
		return req, nil
	}
	return req, s.deps.Within(actor, t.Method, req)
}

// send sends the request of a call to the plane that owns the tool, and returns the outcome. A failure is a result too.
func (s *Service) send(ctx context.Context, scope tools.Scope, t tools.Tool, c *agentv1.ToolCall, req proto.Message) (
	out tools.Outcome,
) {
	out.WorkItemID = scope.WorkItemID
	ctx, span := s.toolSpan(ctx, t, c)
	defer func() { endTool(span, out.Result) }()

	// Call the plane.
	var header metadata.MD
	reply := t.NewResponse()
	conn, err := s.deps.Conn(t.Plane)
	if err == nil {
		err = invoke(ctx, conn, t.Method, req, reply, grpc.Header(&header))
	}
	if err != nil {
		out.Result = tools.Failed(c, err)
		return out
	}

	// Make the result.
	out.Replayed = rpc.WasReplayed(header)
	out.Result, err = tools.Succeeded(c, t, reply)
	if err != nil {
		out.Result = tools.Failed(c, err)
		return out
	}
	if t.Name == tools.ToolCompleteWorkItem && scope.NoText {
		out.Result.Warnings = append(out.Result.Warnings, tools.ReportMissing())
	}
	out.Mutated = t.Mutates && !tools.Unchanged(reply)
	out.WorkItemID = tools.Rebind(scope.WorkItemID, reply)
	return out
}

// invoke sends a request and repeats it while the plane is unavailable, until ctx ends: the request
// id makes that safe, and a restart of one plane must not fail an agent's call.
func invoke(ctx context.Context, conn grpc.ClientConnInterface, method string, req, reply proto.Message,
	opts ...grpc.CallOption,
) error {
	for pacer := retry.New(20*time.Millisecond, time.Second); ; {
		err := conn.Invoke(ctx, method, req, reply, opts...)
		if err == nil || fault.From(err).Code() != codes.Unavailable {
			return err
		}
		if pacer.Wait(ctx) != nil {
			return err
		}
	}
}

// toolSpan starts the span of a tool call, named by OpenTelemetry's conventions for
// generative AI. It carries no arguments and no results.
func (s *Service) toolSpan(ctx context.Context, t tools.Tool, c *agentv1.ToolCall) (context.Context, trace.Span) {
	if !s.deps.Tracer.On() {
		return s.deps.Tracer.Start(ctx, "")
	}
	return s.deps.Tracer.Start(ctx, "execute_tool "+t.Name, trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", t.Name),
		attribute.String("gen_ai.tool.call.id", c.GetCallId()),
		attribute.String("quartet.plane", t.Plane)))
}

// endTool ends the span of a tool call with the kind of its error.
func endTool(span trace.Span, r *agentv1.ToolResult) {
	if span.IsRecording() && r.GetStatus() == tools.StatusError {
		span.SetAttributes(attribute.String("error.type", r.GetError().GetKind()))
		span.SetStatus(otelcodes.Error, r.GetError().GetKind())
	}
	span.End()
}
