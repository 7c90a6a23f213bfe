package fault

import "google.golang.org/grpc/codes"

// The reasons. Callers branch on these, so a name is never changed or reused;
// All below gives each its code and its sentence, and docs/errors.md is
// generated from it.
const (
	InvalidArgument   Reason = "INVALID_ARGUMENT"
	LimitExceeded     Reason = "LIMIT_EXCEEDED"
	UnknownField      Reason = "UNKNOWN_FIELD"
	MalformedJSON     Reason = "MALFORMED_JSON"
	TooLarge          Reason = "TOO_LARGE"
	CursorInvalid     Reason = "CURSOR_INVALID"
	CursorOutOfRange  Reason = "CURSOR_OUT_OF_RANGE"
	NotFound          Reason = "NOT_FOUND"
	AlreadyExists     Reason = "ALREADY_EXISTS"
	RequestIDReused   Reason = "REQUEST_ID_REUSED"
	RevisionConflict  Reason = "REVISION_CONFLICT"
	RunStale          Reason = "RUN_STALE"
	TurnEnded         Reason = "TURN_ENDED"
	WorkItemCompleted Reason = "WORK_ITEM_COMPLETED"
	BlockingExecution Reason = "BLOCKING_EXECUTION"
	TaskNotRunning    Reason = "TASK_NOT_RUNNING"
	ToolNotAvailable  Reason = "TOOL_NOT_AVAILABLE"
	TriggerRevoked    Reason = "TRIGGER_REVOKED"
	TriggerExpired    Reason = "TRIGGER_EXPIRED"
	AgentStopped      Reason = "AGENT_STOPPED"
	PermissionDenied  Reason = "PERMISSION_DENIED"
	Unauthenticated   Reason = "UNAUTHENTICATED"
	Overloaded        Reason = "OVERLOADED"
	Storage           Reason = "STORAGE"
	NotReady          Reason = "NOT_READY"
	Deadline          Reason = "DEADLINE"
	Cancelled         Reason = "CANCELLED"
	Unimplemented     Reason = "UNIMPLEMENTED"
	InternalError     Reason = "INTERNAL"
)

// Entry documents one reason.
type Entry struct {
	Reason Reason
	Code   codes.Code
	Doc    string // one sentence: what happened and what the caller can do
}

// All is the documented list, grouped by what the caller should do about it.
var All = []Entry{
	{InvalidArgument, codes.InvalidArgument, "A request field has a value or a type that is not allowed; the field violations name it."},
	{LimitExceeded, codes.InvalidArgument, "A request field is longer or larger than its limit; metadata has field, limit and value."},
	{UnknownField, codes.InvalidArgument, "The JSON has a field that the message does not know; metadata names its path."},
	{MalformedJSON, codes.InvalidArgument, "The text is not well-formed JSON; the message says where."},
	{TooLarge, codes.InvalidArgument, "The whole request or payload is larger than the server takes (HTTP 413)."},
	{CursorInvalid, codes.InvalidArgument, "The cursor or page token was not made by this server for this call."},
	{CursorOutOfRange, codes.OutOfRange, "The cursor lies outside of the events that are kept here, such as a cursor of another installation; read the state afresh and watch from now."},
	{NotFound, codes.NotFound, "No such record in the caller's namespace."},
	{AlreadyExists, codes.AlreadyExists, "The id or name is taken; ids of deleted records stay taken."},
	{RequestIDReused, codes.AlreadyExists, "The request_id was used before with other arguments; use a fresh one."},
	{RevisionConflict, codes.Aborted, "expected_revision is not the current revision, which is in the metadata; read again and retry."},
	{RunStale, codes.Aborted, "The run no longer holds the agent's turn; stop working on it."},
	{TurnEnded, codes.FailedPrecondition, "An earlier call of the same round ended the turn, so this call was not run."},
	{WorkItemCompleted, codes.FailedPrecondition, "The work item is completed and never changes again."},
	{BlockingExecution, codes.FailedPrecondition, "A task marked blocking still runs for the work item; wait for it or stop it."},
	{TaskNotRunning, codes.FailedPrecondition, "The task has ended, or has not started, so it takes no input or signal."},
	{ToolNotAvailable, codes.PermissionDenied, "The agent's profile does not include this tool."},
	{TriggerRevoked, codes.PermissionDenied, "The external trigger was revoked."},
	{TriggerExpired, codes.PermissionDenied, "The external trigger is past its expiry."},
	{AgentStopped, codes.PermissionDenied, "The agent is stopped and takes no external input until it is started."},
	{PermissionDenied, codes.PermissionDenied, "The credential does not allow this call on this record."},
	{Unauthenticated, codes.Unauthenticated, "The credential is missing, malformed or unknown."},
	{Overloaded, codes.ResourceExhausted, "The server has no room for this request now; retry with backoff."},
	{Storage, codes.Unavailable, "The journal did not acknowledge the write; retry with the same request_id, also when metadata says outcome=unknown."},
	{NotReady, codes.Unavailable, "The service cannot be reached or is still catching up; retry."},
	{Deadline, codes.DeadlineExceeded, "The deadline passed first; retry with the same request_id to learn the outcome."},
	{Cancelled, codes.Canceled, "The caller cancelled the call."},
	{Unimplemented, codes.Unimplemented, "This server does not know the method."},
	{InternalError, codes.Internal, "Something broke inside; report the error_id from the metadata."},
}

var codeOf = func() map[Reason]codes.Code {
	m := make(map[Reason]codes.Code, len(All))
	for _, e := range All {
		m[e.Reason] = e.Code
	}
	return m
}()

// Code is the canonical code of a listed reason.
func (r Reason) Code() codes.Code {
	if c, ok := codeOf[r]; ok {
		return c
	}
	return codes.Internal
}
