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

// errorBody is how REST refuses (SPEC X5).
type errorBody struct {
	Error errorInfo `json:"error"`
}

type errorInfo struct {
	Code     int               `json:"code"`   // the HTTP status
	Status   string            `json:"status"` // the canonical gRPC code
	Reason   string            `json:"reason"` // from docs/errors.md
	Message  string            `json:"message"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Fields   []errorField      `json:"fields,omitempty"`
	// RequestID is the caller's: what to ask again with where the outcome is
	// unknown (SPEC X1).
	RequestID string `json:"requestId,omitempty"`
}

type errorField struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

func errorOf(err error, httpStatus int, requestID string) errorBody {
	e := fault.From(err)
	info := errorInfo{
		Code: httpStatus, Status: rpccode.Code(e.Code()).String(), Reason: string(e.Reason()),
		Message: strings.ToValidUTF8(e.Message(), "\uFFFD"), Metadata: e.Metadata(), RequestID: requestID,
	}
	for _, v := range e.Violations() {
		info.Fields = append(info.Fields, errorField(v))
	}
	return errorBody{info}
}

// refuse responds with err and its HTTP status.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if cause := context.Cause(r.Context()); cause != nil && errors.Is(cause, fault.Unauthenticated) {
		err = cause // its credential ended while the call ran
	}
	refuseAs(w, r, err, fault.HTTPStatus(fault.From(err)))
}

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

func answerJSON(w http.ResponseWriter, httpStatus int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // only types of this package come here
		body, httpStatus = []byte(`{"error":{"code":500,"status":"INTERNAL","reason":"INTERNAL"}}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus)
	_, _ = w.Write(append(body, '\n')) // a client that left misses nothing
}
