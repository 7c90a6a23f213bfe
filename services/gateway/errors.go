package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"

	"quartet/pkg/fault"
)

// errorBody is the body of every refusal of the REST API (SPEC X5).
type errorBody struct {
	Error errorInfo `json:"error"`
}

// errorInfo describes a refusal.
type errorInfo struct {
	Code     int               `json:"code"`   // the HTTP status
	Status   string            `json:"status"` // the canonical gRPC code
	Reason   string            `json:"reason"` // from docs/errors.md
	Message  string            `json:"message"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Fields   []errorField      `json:"fields,omitempty"`
	// Methods are the HTTP method and path of each RPC that the message names (SPEC X5.1).
	Methods map[string]string `json:"methods,omitempty"`
	// RequestID is the request id that the caller gave, with which it repeats a request
	// whose outcome is unknown (SPEC X1).
	RequestID string `json:"requestId,omitempty"`
}

// errorField says what is wrong with a field of a request.
type errorField struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// errorOf returns the body for err. requestID may be empty.
func errorOf(err error, httpStatus int, requestID string) errorBody {
	e := fault.From(err)
	info := errorInfo{
		Code: httpStatus, Status: rpccode.Code(e.Code()).String(), Reason: string(e.Reason()),
		Message: strings.ToValidUTF8(e.Message(), "\uFFFD"), Metadata: e.Metadata(), RequestID: requestID,
	}
	info.Methods = pathsNamed(info.Message)
	for _, v := range e.Violations() {
		info.Fields = append(info.Fields, errorField(v))
	}
	return errorBody{info}
}

// refuse responds with err and its HTTP status. If the caller's credential ended while the call ran,
// it responds with that instead.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if cause := context.Cause(r.Context()); cause != nil && errors.Is(cause, fault.Unauthenticated) {
		err = cause // its credential ended while the call ran
	}
	refuseAs(w, r, err, fault.HTTPStatus(fault.From(err)))
}

// refuseAs responds with err and an HTTP status. A revision conflict under If-Match always has the
// status 412.
func refuseAs(w http.ResponseWriter, r *http.Request, err error, httpStatus int) {
	in := inputOf(r)
	if in.conditional && fault.From(err).Reason() == fault.RevisionConflict {
		httpStatus = http.StatusPreconditionFailed // SPEC X3
	}
	switch httpStatus {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="quartet"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		seconds := math.Ceil(max(fault.From(err).RetryAfter(), time.Second).Seconds())
		w.Header().Set("Retry-After", strconv.FormatFloat(seconds, 'f', 0, 64))
	}
	answerJSON(w, httpStatus, errorOf(err, httpStatus, in.requestID))
}

// answerJSON responds with v as JSON. It must be called at most once for a response.
func answerJSON(w http.ResponseWriter, httpStatus int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // it is called with types of this package only
		body, httpStatus = []byte(`{"error":{"code":500,"status":"INTERNAL","reason":"INTERNAL"}}`),
			http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus)
	_, _ = w.Write(append(body, '\n')) // the client may have left
}
