package fault

import "google.golang.org/grpc/codes"

// The reasons. Callers branch on these, so a name is never changed or reused. All defines the
// code and the description of each, and docs/errors.md is generated from it.
const (
	InvalidArgument         Reason = "INVALID_ARGUMENT"
	LimitExceeded           Reason = "LIMIT_EXCEEDED"
	UnknownField            Reason = "UNKNOWN_FIELD"
	MalformedJSON           Reason = "MALFORMED_JSON"
	TooLarge                Reason = "TOO_LARGE"
	CursorInvalid           Reason = "CURSOR_INVALID"
	CursorOutOfRange        Reason = "CURSOR_OUT_OF_RANGE"
	HistoryRemoved          Reason = "HISTORY_REMOVED"
	OutputRemoved           Reason = "OUTPUT_REMOVED"
	NotFound                Reason = "NOT_FOUND"
	AlreadyExists           Reason = "ALREADY_EXISTS"
	RequestIDReused         Reason = "REQUEST_ID_REUSED"
	RevisionConflict        Reason = "REVISION_CONFLICT"
	RunStale                Reason = "RUN_STALE"
	TurnEnded               Reason = "TURN_ENDED"
	WorkItemCompleted       Reason = "WORK_ITEM_COMPLETED"
	BlockingExecution       Reason = "BLOCKING_EXECUTION"
	PathOutsideHome         Reason = "PATH_OUTSIDE_HOME"
	NotAFile                Reason = "NOT_A_FILE"
	HashMismatch            Reason = "HASH_MISMATCH"
	TextNotFound            Reason = "TEXT_NOT_FOUND"
	TextNotUnique           Reason = "TEXT_NOT_UNIQUE"
	BaselineOverBudget      Reason = "BASELINE_OVER_BUDGET"
	TaskNotRunning          Reason = "TASK_NOT_RUNNING"
	ToolNotAvailable        Reason = "TOOL_NOT_AVAILABLE"
	TriggerRevoked          Reason = "TRIGGER_REVOKED"
	TriggerExpired          Reason = "TRIGGER_EXPIRED"
	SignatureInvalid        Reason = "SIGNATURE_INVALID"
	InstallationKeyRetired  Reason = "INSTALLATION_KEY_RETIRED"
	AgentStopped            Reason = "AGENT_STOPPED"
	AgentDeleted            Reason = "AGENT_DELETED"
	ChildLimit              Reason = "CHILD_AGENT_LIMIT_EXCEEDED"
	NotAWorkTree            Reason = "NOT_A_WORK_TREE"
	WorktreeFailed          Reason = "WORKTREE_FAILED"
	DependencyCycle         Reason = "DEPENDENCY_CYCLE"
	UnknownDependency       Reason = "UNKNOWN_DEPENDENCY"
	DuplicateStep           Reason = "DUPLICATE_STEP"
	PathConflict            Reason = "PATH_CONFLICT"
	StepHasDependents       Reason = "STEP_HAS_DEPENDENTS"
	StepState               Reason = "STEP_STATE"
	BoardState              Reason = "BOARD_STATE"
	TaskTerminal            Reason = "TASK_TERMINAL"
	StepAlreadyClaimed      Reason = "STEP_ALREADY_CLAIMED"
	StepAlreadyClaimedByRun Reason = "STEP_ALREADY_CLAIMED_BY_RUN"
	LeaseExpired            Reason = "LEASE_EXPIRED"
	BoardNotDispatchable    Reason = "BOARD_NOT_DISPATCHABLE"
	BoardNotCompleteable    Reason = "BOARD_NOT_COMPLETEABLE"
	WorkerBusy              Reason = "WORKER_BUSY"
	WorkerPoolBusy          Reason = "WORKER_POOL_BUSY"
	PermissionDenied        Reason = "PERMISSION_DENIED"
	Unauthenticated         Reason = "UNAUTHENTICATED"
	Overloaded              Reason = "OVERLOADED"
	QuotaExceeded           Reason = "QUOTA_EXCEEDED"
	RateLimited             Reason = "RATE_LIMITED"
	Storage                 Reason = "STORAGE"
	StorageFull             Reason = "STORAGE_FULL"
	NotReady                Reason = "NOT_READY"
	PartitionMoved          Reason = "PARTITION_MOVED"
	Deadline                Reason = "DEADLINE"
	Cancelled               Reason = "CANCELLED"
	Unimplemented           Reason = "UNIMPLEMENTED"
	InternalError           Reason = "INTERNAL"
)

// Entry documents one reason.
type Entry struct {
	Reason Reason
	Code   codes.Code
	Doc    string // one sentence: what happened and what the caller can do
}

// All is the documented list, in the order of docs/errors.md: grouped by what a reason is about.
// It has each declared reason once.
var All = []Entry{
	{InvalidArgument, codes.InvalidArgument, "A request field has a value or a type that is not allowed; the field " +
		"violations name it."},
	{LimitExceeded, codes.InvalidArgument, "A request field is longer or larger than its limit; metadata has field, " +
		"limit and value."},
	{
		UnknownField, codes.InvalidArgument,
		"The JSON has a field that the message does not know; metadata names its path.",
	},
	{MalformedJSON, codes.InvalidArgument, "The text is not well-formed JSON; the message says where."},
	{TooLarge, codes.InvalidArgument, "The whole request or payload is larger than the server takes (HTTP 413)."},
	{CursorInvalid, codes.InvalidArgument, "The cursor or page token was not made by this server for this call."},
	{OutputRemoved, codes.OutOfRange, "The output of the command was removed: it is kept for output-days after it " +
		"was written, or its agent was deleted. GetTask shows how the command ended."},
	{HistoryRemoved, codes.OutOfRange, "What was asked for is older than history is kept (history-days), and was " +
		"removed; what is newer can be read. The record itself is there."},
	{CursorOutOfRange, codes.OutOfRange, "The cursor lies outside of the events that are kept here, such as a cursor " +
		"of another installation; read the state afresh and watch from now."},
	{NotFound, codes.NotFound, "No such record in the caller's namespace."},
	{AlreadyExists, codes.AlreadyExists, "The id or name is taken; ids of deleted records stay taken."},
	{RequestIDReused, codes.AlreadyExists, "The request_id was used before with other arguments; use a fresh one."},
	{RevisionConflict, codes.Aborted, "expected_revision is not the current revision, which is in the metadata; read " +
		"again and retry."},
	{RunStale, codes.Aborted, "The run no longer holds the agent's turn; stop working on it."},
	{
		TurnEnded, codes.FailedPrecondition,
		"An earlier call of the same round ended the turn, so this call was not run.",
	},
	{WorkItemCompleted, codes.FailedPrecondition, "The work item is completed and never changes again."},
	{BlockingExecution, codes.FailedPrecondition, "A task marked blocking still runs for the work item; wait for it " +
		"or stop it."},
	{PathOutsideHome, codes.PermissionDenied, "The path leads out of the agent's home, by .., as an absolute path or " +
		"through a link; give one relative to the home."},
	{NotAFile, codes.FailedPrecondition, "What stands at the path is not of the kind that is needed: a directory, a " +
		"link, a pipe or a device instead of a file, or a file instead of a directory."},
	{HashMismatch, codes.Aborted, "The file is not the one that was expected; its sha256 is in the metadata; read it " +
		"again and retry."},
	{TextNotFound, codes.FailedPrecondition, "The text to be replaced does not stand in the file, exactly as given; " +
		"read the file again."},
	{TextNotUnique, codes.FailedPrecondition, "The text to be replaced stands in the file more than once; give more " +
		"of what is around it, or set replace_all."},
	{BaselineOverBudget, codes.FailedPrecondition, "What a context must show, the objective, the plan's descriptor " +
		"and the open todos, does not fit into the budget; metadata has what is needed."},
	{
		TaskNotRunning, codes.FailedPrecondition,
		"The task has ended, or has not started, so it takes no input or signal.",
	},
	{ToolNotAvailable, codes.PermissionDenied, "The agent's profile does not include this tool."},
	{TriggerRevoked, codes.PermissionDenied, "The external trigger was revoked."},
	{TriggerExpired, codes.PermissionDenied, "The external trigger is past its expiry."},
	{SignatureInvalid, codes.PermissionDenied, "The delivery is not signed as its trigger demands; check the scheme, " +
		"the signing secret and the clock."},
	{InstallationKeyRetired, codes.FailedPrecondition, "A secret follows from a key of the installation that was " +
		"retired; the message says what to rotate or create again."},
	{AgentStopped, codes.PermissionDenied, "The agent is stopped and takes no external input until it is started."},
	{AgentDeleted, codes.FailedPrecondition, "The agent is deleted, or about to be; it can be read, and nothing can " +
		"be done for it any more."},
	{ChildLimit, codes.ResourceExhausted, "The agent supervises as many children as it may; wait for one to end, or " +
		"stop one."},
	{NotAWorkTree, codes.FailedPrecondition, "The directory is not in a git work tree that a worker may use, so no " +
		"worktree can be made of it; the message says why."},
	{
		WorktreeFailed, codes.FailedPrecondition,
		"The worker could not make the worktree; the message has what git said.",
	},
	{DependencyCycle, codes.FailedPrecondition, "The dependencies of a board would run in a circle; metadata has the " +
		"steps of one."},
	{UnknownDependency, codes.FailedPrecondition, "A step depends on a step that the board does not have; metadata " +
		"names both."},
	{DuplicateStep, codes.AlreadyExists, "The board has a step of this id, or the request gives it twice."},
	{PathConflict, codes.AlreadyExists, "A board of the session has, or had, the WAL name; choose another one."},
	{StepHasDependents, codes.FailedPrecondition, "The step cannot be deleted while others depend on it; metadata " +
		"names them."},
	{StepState, codes.FailedPrecondition, "The step does not stand where this can be done; metadata has its status."},
	{BoardState, codes.FailedPrecondition, "The board does not stand where this can be done; metadata has its status."},
	{TaskTerminal, codes.FailedPrecondition, "The board has ended, or is being ended, and takes no changes; it can " +
		"be read."},
	{StepAlreadyClaimed, codes.Aborted, "Another run holds the step; query the steps again and take another one."},
	{StepAlreadyClaimedByRun, codes.FailedPrecondition, "The run has claimed its one step already; metadata names it."},
	{LeaseExpired, codes.Aborted, "The step's lease was over before the report came, and the step was given back; " +
		"stop working on it."},
	{BoardNotDispatchable, codes.FailedPrecondition, "The board is blocked or has ended, so nothing is dispatched or " +
		"claimed; reopen a blocked one first."},
	{BoardNotCompleteable, codes.FailedPrecondition, "Required steps are not completed, or steps are held by " +
		"workers; metadata names them."},
	{WorkerBusy, codes.ResourceExhausted, "The worker has no room for another run; there is no queue, so dispatch " +
		"again later or to another one."},
	{WorkerPoolBusy, codes.ResourceExhausted, "No connected worker of the pool has room for another run; there is no " +
		"queue, so dispatch again later."},
	{PermissionDenied, codes.PermissionDenied, "The credential does not allow this call on this record."},
	{Unauthenticated, codes.Unauthenticated, "The credential is missing, malformed or unknown."},
	{Overloaded, codes.ResourceExhausted, "The server has no room for this request now: too much is in progress, " +
		"open or queued, or memory is short; retry after Retry-After, or with backoff. A stream ends with it when it " +
		"is read too slowly."},
	{QuotaExceeded, codes.ResourceExhausted, "The namespace holds as much as it may; metadata has quota, limit and " +
		"value. Remove something, or have an admin raise the quota."},
	{RateLimited, codes.ResourceExhausted, "The namespace sends more requests than it may, or a trigger, namespace " +
		"or address more deliveries; metadata has the limit. Repeat the request after Retry-After (gRPC: RetryInfo)."},
	{Storage, codes.Unavailable, "The journal did not acknowledge the write; retry with the same request_id, also " +
		"when metadata says outcome=unknown. If metadata has damaged, the journal of a partition is damaged, and " +
		"retrying does not help: the operator runs quartet repair."},
	{StorageFull, codes.ResourceExhausted, "The store of the journals has no room for the write, and nothing was " +
		"stored; reads, and what ends or removes something, still work. Make room as the message says, then repeat " +
		"the request."},
	{NotReady, codes.Unavailable, "The service cannot be reached or is still catching up; retry."},
	{PartitionMoved, codes.Unavailable, "Another instance of the service holds the partition, or none does at the " +
		"moment; nothing was done; retry."},
	{
		Deadline, codes.DeadlineExceeded,
		"The deadline passed first; retry with the same request_id to learn the outcome.",
	},
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

// Code returns the canonical code of a listed reason, and codes.Internal for any other.
func (r Reason) Code() codes.Code {
	if c, ok := codeOf[r]; ok {
		return c
	}
	return codes.Internal
}
