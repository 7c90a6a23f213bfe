package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

// setQueryParser makes the generated handlers of the process use queryParser: grpc-gateway has one
// parser for all of them.
var setQueryParser = sync.OnceFunc(func() { runtime.NewServeMux(runtime.SetQueryParameterParser(queryParser{})) })

// api returns the handler of the REST API, as proto/gateway.yaml maps it to RPCs.
func (g *Service) api() (http.Handler, error) {
	routes, err := newRouteTable(g.deps.Waits)
	if err != nil {
		return nil, err
	}
	setQueryParser()
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, codec{}),
		runtime.WithErrorHandler(func(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler,
			w http.ResponseWriter, r *http.Request, err error,
		) {
			refuse(w, r.WithContext(ctx), stopped(ctx, r.Method, err))
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler,
			w http.ResponseWriter, r *http.Request, httpStatus int,
		) {
			unrouted(w, r, httpStatus)
		}),
		runtime.WithStreamErrorHandler(func(ctx context.Context, err error) *status.Status {
			if cause := context.Cause(ctx); errors.Is(cause, fault.Unauthenticated) {
				err = cause // its credential ended
			}
			return fault.From(err).GRPCStatus()
		}),
		runtime.WithMiddlewares(g.decoded(routes)),
		runtime.WithMetadata(traceMetadata),
		runtime.WithForwardResponseOption(tag),
		runtime.WithOutgoingHeaderMatcher(func(key string) (string, bool) {
			return "Idempotent-Replayed", key == "idempotent-replayed" // SPEC X2
		}),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithWriteContentLength(),
	)
	// The mux tries patterns in the reverse order of their registration, and a pattern without a
	// verb would match "keeper:explain" as an agent's name. So the scheduler is registered last.
	for _, service := range []struct {
		name     string
		register func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error
	}{
		{"agent", handlers(agentv1.RegisterAgentServiceHandlerClient, agentv1.NewAgentServiceClient)},
		{"work", handlers(workv1.RegisterWorkServiceHandlerClient, workv1.NewWorkServiceClient)},
		{"work", handlers(workv1.RegisterHomeServiceHandlerClient, workv1.NewHomeServiceClient)},
		{"task", handlers(taskv1.RegisterTaskServiceHandlerClient, taskv1.NewTaskServiceClient)},
		{"waiting", handlers(waitingv1.RegisterWaitingServiceHandlerClient, waitingv1.NewWaitingServiceClient)},
		{"board", handlers(boardv1.RegisterBoardServiceHandlerClient, boardv1.NewBoardServiceClient)},
		{"identity", handlers(auditv1.RegisterAuditServiceHandlerClient, auditv1.NewAuditServiceClient)},
		{"identity", handlers(identityv1.RegisterIdentityServiceHandlerClient, identityv1.NewIdentityServiceClient)},
		{"fleet", handlers(fleetv1.RegisterFleetServiceHandlerClient, fleetv1.NewFleetServiceClient)},
		{"scheduler", handlers(schedulerv1.RegisterSchedulerServiceHandlerClient,
			schedulerv1.NewSchedulerServiceClient)},
	} {
		plane, err := g.conn(service.name)
		if err == nil {
			err = service.register(mux, plane)
		}
		if err != nil {
			return nil, err
		}
	}
	return mux, nil
}

// handlers returns a function that registers the generated handlers of a service, which call it over a connection.
func handlers[Client any](register func(context.Context, *runtime.ServeMux, Client) error,
	newClient func(grpc.ClientConnInterface) Client,
) func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
	return func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
		return register(context.Background(), mux, newClient(conn))
	}
}

// unrouted responds to a request that no handler is for, with the status that the mux determined.
func unrouted(w http.ResponseWriter, r *http.Request, httpStatus int) {
	switch httpStatus {
	case http.StatusMethodNotAllowed:
		refuseAs(w, r, fault.Unimplemented.New(r.Method+" is not possible here; GET /openapi.json lists what is"),
			httpStatus)
	case http.StatusBadRequest:
		refuse(w, r, fault.InvalidArgument.New("the path cannot be read"))
	default:
		refuse(w, r, fault.NotFound.New("no such address; GET /openapi.json lists those there are"))
	}
}

// tag sets the ETag of a response about one record, which is one whose first message has a
// revision (SPEC X3).
func tag(_ context.Context, w http.ResponseWriter, m proto.Message) error {
	if m == nil {
		return nil // the beginning of a stream
	}
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	if fields.ByName("revision") != nil {
		return nil // the revision of a view, not of a record
	}
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.Message() == nil {
			continue
		}
		if fd.IsList() || fd.IsMap() || !r.Has(fd) {
			return nil
		}
		record := r.Get(fd).Message()
		if revision := record.Descriptor().Fields().ByName("revision"); revision != nil &&
			revision.Kind() == protoreflect.Int64Kind {
			w.Header().Set("ETag", `"`+strconv.FormatInt(record.Get(revision).Int(), 10)+`"`)
		}
		return nil
	}
	return nil
}

// codec is the marshaler of the mux. It writes responses as ProtoJSON, and reads requests
// from the input that the middleware decoded.
type codec struct{}

// ContentType implements runtime.Marshaler.
func (codec) ContentType(any) string { return "application/json" }

// StreamContentType implements runtime.StreamContentType.
func (codec) StreamContentType(any) string { return "application/x-ndjson" }

// Marshal implements runtime.Marshaler.
func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case proto.Message:
		return pbjson.MarshalProtoJSON(v)
	case map[string]any: // an element of a stream
		if m, ok := v["result"].(proto.Message); ok {
			inner, err := pbjson.MarshalProtoJSON(m)
			return append(append([]byte(`{"result":`), inner...), '}'), err
		}
	case map[string]proto.Message: // the error that ends one
		if st, ok := v["error"].(*spb.Status); ok {
			err := status.FromProto(st).Err()
			return json.Marshal(errorOf(err, fault.HTTPStatus(fault.From(err)), ""))
		}
	}
	return nil, fmt.Errorf("gateway: a %T has no JSON form", v)
}

// Unmarshal implements runtime.Marshaler. It always fails: requests are read by NewDecoder, which
// calls it for what it cannot read.
func (codec) Unmarshal([]byte, any) error {
	return errors.New("gateway: requests are decoded by the middleware")
}

// NewDecoder implements runtime.Marshaler. The body of every request is an *input.
func (c codec) NewDecoder(body io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		in, ok := body.(*input)
		m, isMessage := v.(proto.Message)
		if !ok || !isMessage {
			return c.Unmarshal(nil, v)
		}
		// Nobody else uses the decoded message, so m may share what is in its fields.
		in.msg.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			m.ProtoReflect().Set(fd, value)
			return true
		})
		return nil
	})
}

// NewEncoder implements runtime.Marshaler.
func (c codec) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		b, err := c.Marshal(v)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
}
