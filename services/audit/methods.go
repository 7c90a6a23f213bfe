package audit

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

// recorded has the methods whose calls are recorded: those that create or end credentials and trigger
// URLs, read what only admins may see, export data, or stop or end the work of others.
var recorded = map[string]bool{
	identityv1.IdentityService_CreateKey_FullMethodName: true,
	identityv1.IdentityService_RevokeKey_FullMethodName: true,
	identityv1.IdentityService_GetKey_FullMethodName:    true,
	identityv1.IdentityService_ListKeys_FullMethodName:  true,
	identityv1.IdentityService_GetUsage_FullMethodName:  true,
	auditv1.AuditService_ListAudit_FullMethodName:       true,
	backupv1.BackupService_ExportBackup_FullMethodName:  true,

	agentv1.AgentService_AbortRun_FullMethodName:    true,
	agentv1.AgentService_PauseAgent_FullMethodName:  true,
	agentv1.AgentService_ResumeAgent_FullMethodName: true,
	agentv1.AgentService_StopAgent_FullMethodName:   true,
	agentv1.AgentService_StartAgent_FullMethodName:  true,
	agentv1.AgentService_DeleteAgent_FullMethodName: true,
	taskv1.TaskService_StopTask_FullMethodName:      true,

	waitingv1.WaitingService_CreateExternalTrigger_FullMethodName: true,
	waitingv1.WaitingService_CancelExternalTrigger_FullMethodName: true,
	waitingv1.WaitingService_RotateExternalTrigger_FullMethodName: true,

	boardv1.BoardService_CancelBoard_FullMethodName:           true,
	boardv1.BoardService_FailBoard_FullMethodName:             true,
	boardv1.BoardService_CancelWorkerRun_FullMethodName:       true,
	boardv1.BoardService_CloseStandingDispatch_FullMethodName: true,
}

// acrossNamespaces has the recorded methods that an admin of the installation can call about another namespace
// than its own, or about all namespaces.
var acrossNamespaces = map[string]bool{
	identityv1.IdentityService_CreateKey_FullMethodName: true,
	identityv1.IdentityService_RevokeKey_FullMethodName: true,
	identityv1.IdentityService_GetKey_FullMethodName:    true,
	identityv1.IdentityService_ListKeys_FullMethodName:  true,
	identityv1.IdentityService_GetUsage_FullMethodName:  true,
	auditv1.AuditService_ListAudit_FullMethodName:       true,
	backupv1.BackupService_ExportBackup_FullMethodName:  true,
}

// records reports whether a call is recorded: one of a method in recorded, by an admin, operator,
// runner or integration. Calls of agents, workers and services are not, because the events of the
// planes show them. Of a list only the request for the first page is recorded.
func records(method string, actor rpc.Actor, req any) bool {
	if !recorded[method] || !actor.HasAny(rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleIntegration) {
		return false
	}
	if r, ok := req.(interface{ GetPageToken() string }); ok && r.GetPageToken() != "" {
		return false
	}
	if r, ok := req.(*auditv1.ListAuditRequest); ok && r.GetAfter() > 0 {
		return false
	}
	return true
}

// maxTarget is the length, in bytes, to which each value of a target is cut before it is recorded.
const maxTarget = 256

// targetOf returns the ids, names and role among the fields of a message, by field name, and the namespace
// among them; fields of nested messages are not searched. Values are cut off at maxTarget. Nothing else of
// a request is recorded, since it may be secret.
func targetOf(m protoreflect.Message) (target map[string]string, namespace string) {
	target = map[string]string{}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(fd.Name())
		switch {
		case fd.IsList() || fd.IsMap() || name == "request_id":
		case fd.Kind() == protoreflect.EnumKind && name == "role":
			if value := fd.Enum().Values().ByNumber(v.Enum()); value != nil {
				target[name] = strings.ToLower(strings.TrimPrefix(string(value.Name()), "ROLE_"))
			}
		case fd.Kind() == protoreflect.StringKind && (strings.HasSuffix(name, "_id") || name == "name" ||
			name == "namespace"):
			target[name] = strings.ToValidUTF8(cut(v.String()), "\uFFFD")
		}
		return true
	})
	return target, target["namespace"]
}

func cut(s string) string {
	if len(s) > maxTarget {
		return s[:maxTarget]
	}
	return s
}
