package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// Roles are the roles of SPEC X15, in the order of the documented table.
var Roles = []string{
	rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleAgent,
	rpc.RoleWorker, rpc.RoleIntegration, rpc.RoleService,
}

// letters are the letters of Roles in the rows of policy, in the same order.
const letters = "NAORGWIS"

// policy says which roles may call a method (SPEC X15), a letter for each role: iNstallation admin, Admin,
// Operator, Runner, aGent, Worker, Integration, Service. "between" is for calls that a
// service makes, for any actor. An admin of the installation may call everything that an admin may
// call, and has no letter in those rows. The planes restrict further: an agent acts for itself only,
// and a worker for what was dispatched to it. docs/roles.md is generated from this table.
var policy = map[string]map[string]string{
	"quartet.agent.v1.AgentService": {
		"SpawnAgent": "AOG", "GetAgent": "AORGIS", "ListAgents": "AORGIS",
		"EnqueueMessage": "AOIS", "GetMessage": "AORGIS", "ListMessages": "AORGS",
		"AcquireTurn": "ARG", "RenewTurn": "ARG", "StartLocalCalls": "ARG", "SubmitRound": "ARG", "FinishTurn": "ARG",
		"WatchTurn": "ARGS",
		"GetTurn":   "AORGS", "ListTurns": "AORGS", "ListDecisions": "AORGS", "ListRounds": "AORGS",
		"AbortRun": "AOS", "PauseAgent": "AOGS", "ResumeAgent": "AOGS", "StopAgent": "AOGS", "StartAgent": "AOGS",
		"DeleteAgent":   "AOGS",
		"GetDelegation": "AORGS", "ListDelegations": "AORGS", "ListBriefs": "AORGS", "ListConversation": "AORGS",
		"GetContext": "AORGS",
		"ListTools":  "AORGS", "CallTool": "AOGS",
		"GetFacts": between, "OfferDecision": between,
	},
	"quartet.work.v1.WorkService": {
		"CreateWorkItem": "AOGS", "UpdateWorkItem": "AOGS", "CompleteWorkItem": "AOGS", "PickWorkItem": "AGS",
		"GetWorkItem": "AORGS", "ListWorkItems": "AORGS", "GetWorkQueue": "AORGS", "ListWorkItemHistory": "AORGS",
		"PromoteReport": between, "AttachWait": between, "ConsumeRecheck": between, "FindWorkItem": between,
		"ListPendingAgents": between,
	},
	"quartet.work.v1.HomeService": {
		"ReadFile": "AORGS", "ListFiles": "AORGS", "GrepFiles": "AORGS", "WriteFile": "AOGS", "EditFile": "AOGS",
	},
	"quartet.task.v1.TaskService": {
		"ExecCommand": "AOGS", "SendTaskInput": "AOGS", "StopTask": "AOGS",
		"ListTasks": "AORGS", "GetTask": "AORGS", "GetTaskOutput": "AORGS", "FollowTaskOutput": "AORGS",
	},
	"quartet.task.v1.WorkerService":   {"Connect": "AWS"},
	"quartet.task.v1.WorktreeService": {"PlanWorktree": between, "MakeWorktree": between, "RemoveWorktree": between},
	"quartet.waiting.v1.WaitingService": {
		"WaitFor": "AOGS", "CreateWait": "AOGS", "CancelWait": "AOGS", "GetWait": "AORGS", "ListWaits": "AORGS",
		"CreateExternalTrigger": "AOGS", "CancelExternalTrigger": "AOGS", "RotateExternalTrigger": "AOGS",
		"ListExternalTriggers": "AORGS", "GetExternalTrigger": "AORGS",
		"DeliverTrigger": "AOIS", "CheckDelivery": between, "CreateTimer": "AOGS", "CancelTimer": "AOGS",
		"ListTimers": "AORGS", "GetTimer": "AORGS",
	},
	"quartet.board.v1.BoardService": {
		"GetTemplate": "AOGS", "CreateBoard": "AGS", "GetBoard": "AOGWS", "ListBoards": "AOGS", "UpdateBoard": "AOGS",
		"QuerySteps": "AOGWS", "ClaimStep": "W", "UpdateStep": "AGWS", "CompleteBoard": "AGS", "FailBoard": "AOGS",
		"CancelBoard":  "AOGS",
		"InspectBoard": "AOGS", "GetSummary": "AOGWS", "DispatchWorker": "AGS", "GetWorkerRun": "AOGS",
		"ListWorkerRuns":  "AOGS",
		"CancelWorkerRun": "AOGS", "FinishWorkerRun": "W", "RenewWorkerRun": "W",
		"OpenStandingDispatch": "AGS", "CloseStandingDispatch": "AOGS", "ListStandingDispatches": "AOGS",
		"ListWorkers": "AORGS",
		"ListWals":    "AOGS", "ReadWal": "AOGS", "FollowWal": "AOGS",
	},
	"quartet.board.v1.BoardWorkerService":   {"Connect": "AWS"},
	"quartet.event.v1.EventService":         {"WatchEvents": "AORGS"},
	"quartet.scheduler.v1.SchedulerService": {"Explain": "AORGS"},
	"quartet.fleet.v1.FleetService":         {"SearchAgents": "AOR", "CountAgents": "AOR"},
	"quartet.identity.v1.IdentityService": {
		"CreateKey": "A", "GetKey": "A", "ListKeys": "A", "RevokeKey": "A",
		"ListProcesses": "N", "GetUsage": "A", "WhoAmI": letters, "ReportKeyUse": between,
	},
	"quartet.backup.v1.BackupService":          {"ExportBackup": "N"},
	"quartet.audit.v1.AuditService":            {"ListAudit": "A", "RecordAudit": between},
	"grpc.reflection.v1.ServerReflection":      {"ServerReflectionInfo": letters},
	"grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": letters},
}

// between is the row of a method that only services call.
const between = "between"

// rule is a parsed row of the table.
type rule struct {
	roles   []string
	named   []string // roles as errors name them: without one that another implies
	between bool     // only services may call it, for any actor
	tool    bool     // a tool of the board contract: the board plane refuses it with the tool's name
}

// rules are the rows of policy, by full method name.
var rules = compile()

// compile returns the rules of policy, by full method name (/service/Method).
func compile() map[string]*rule {
	out := map[string]*rule{}
	for service, methods := range policy {
		for method, who := range methods {
			r := &rule{tool: service == "quartet.board.v1.BoardService" && method != "ListWorkers"}
			if who == between {
				r.between, r.roles = true, []string{rpc.RoleService}
			} else {
				for _, letter := range who {
					r.roles = append(r.roles, Roles[strings.IndexRune(letters, letter)])
				}
				if strings.Contains(who, "A") {
					r.roles = append(r.roles, rpc.RoleInstallationAdmin)
				}
			}
			r.named = r.roles
			if slices.Contains(r.roles, rpc.RoleAdmin) {
				r.named = slices.DeleteFunc(slices.Clone(r.roles), func(role string) bool {
					return role == rpc.RoleInstallationAdmin
				})
			}
			out["/"+service+"/"+method] = r
		}
	}
	return out
}

// Allowed returns the roles that may call a method, which is given as "/service/Method".
// between says that only services may call it, for actors of these roles. A method that is
// not in the table may not be called.
func Allowed(method string) (roles []string, between bool) {
	if r := rules[method]; r != nil {
		return r.roles, r.between
	}
	return nil, false
}

// Allows reports whether the table allows a role to call a method, which is given as "/service/Method".
func Allows(role, method string) bool {
	r := rules[method]
	return r != nil && slices.Contains(r.roles, role)
}

// Permit returns an error unless the caller's role may call a method (SPEC X15):
// UNAUTHENTICATED without an actor, otherwise PERMISSION_DENIED. It admits any role to the
// tools of boards, because the board plane itself refuses those with the tool's name, and any actor
// to a method between services if a service makes the call for the actor. It is called for every call,
// and no other place refuses a role: planes check what depends on the request or on a record.
func Permit(ctx context.Context, method string, a rpc.Actor) error {
	r := rules[method]
	switch {
	case r == nil:
		return fault.PermissionDenied.New("method "+method+" is in no role's table", "method", method)
	case slices.Contains(r.roles, a.Role), r.between && rpc.Via(ctx) != "":
		return nil
	case a.Role == "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	case r.tool:
		return nil // refused by the plane, which knows the tool's name
	}
	_, name, _ := strings.Cut(method[1:], "/")
	return fault.PermissionDenied.New(fmt.Sprintf("role %s may not call %s; it takes %s", a.Role, name,
		strings.Join(r.named, " or ")),
		"role", a.Role, "principal", a.Principal, "method", method)
}

// RolesDocument returns the text of docs/roles.md, which make generate writes.
func RolesDocument() string {
	var b strings.Builder
	b.WriteString(rolesIntroduction)
	for _, service := range sortedKeys(policy) {
		fmt.Fprintf(&b, "\n## %s\n\n| method | %s |\n|---|%s\n", service, strings.Join(Roles, " | "),
			strings.Repeat("---|", len(Roles)))
		for _, method := range sortedKeys(policy[service]) {
			r := rules["/"+service+"/"+method]
			fmt.Fprintf(&b, "| %s |", method)
			for _, role := range Roles {
				switch {
				case slices.Contains(r.roles, role):
					b.WriteString(" yes |")
				default:
					b.WriteString("  |")
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

const rolesIntroduction = `# Roles

<!-- Generated from services/identity/policy.go by make generate. -->

Who calls is what its credential says, and a credential has one role in one namespace. This is
what each role may call, over gRPC and over the REST routes of the same methods; anything else is refused with
` + "`PERMISSION_DENIED`" + ` (` + "`TOOL_NOT_AVAILABLE`" + ` on boards). Within a role its plane decides further:

- **installation_admin** manages the installation: credentials, quotas, usage, audit and export of all namespaces, and backups. In its own namespace it
  is an admin.
- **admin** manages one namespace, its credentials included, and does everything that can be done there.
- **operator** works for one namespace; it never picks items, submits rounds or claims steps.
- **runner** takes turns. What happens inside a turn is done with the turn's own credential, which acts as the agent.
- **agent** is one agent, by a key or by the credential of a run; it acts for itself and no other agent. A run's
  credential ends with the run.
- **worker** executes what is dispatched to it. On boards it shows the credential of its run, which sees that run's board.
- **integration** brings messages of outside systems. A trigger's URL needs no credential beside the token in it.
- **service** is Quartet's own processes. No key has this role: services know each other by the installation's key. A
  method with "yes" for service alone is between services only.

Keys are made with ` + "`quartet key create`" + `; see [identity](guides/identity.md).
`
