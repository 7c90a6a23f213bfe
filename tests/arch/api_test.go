package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"quartet/pkg/must"
	"quartet/pkg/plane/planetest"
	protofiles "quartet/proto"
	_ "quartet/services/app" // links every service
	"quartet/services/identity"
)

// notREST are the RPCs that no line of proto/gateway.yaml names, and why.
var notREST = map[string]string{
	"quartet.agent.v1.AgentService/GetFacts":         "between services",
	"quartet.agent.v1.AgentService/OfferDecision":    "between services",
	"quartet.work.v1.WorkService/PromoteReport":      "between services",
	"quartet.work.v1.WorkService/AttachWait":         "between services",
	"quartet.work.v1.WorkService/ConsumeRecheck":     "between services",
	"quartet.work.v1.WorkService/FindWorkItem":       "between services",
	"quartet.work.v1.WorkService/ListPendingAgents":  "between services",
	"quartet.task.v1.WorkerService/Connect":          "a stream in both directions",
	"quartet.task.v1.WorktreeService/PlanWorktree":   "between services",
	"quartet.task.v1.WorktreeService/MakeWorktree":   "between services",
	"quartet.task.v1.WorktreeService/RemoveWorktree": "between services",
	"quartet.waiting.v1.WaitingService/DeliverTrigger": "POST /v1/triggers/{token} takes any content type; the " +
		"gateway serves it itself",
	"quartet.waiting.v1.WaitingService/CheckDelivery":  "between services",
	"quartet.board.v1.BoardService/ReadWal":            "the gateway serves WALs as files",
	"quartet.board.v1.BoardService/FollowWal":          "the gateway serves WALs as files",
	"quartet.board.v1.BoardWorkerService/Connect":      "a stream in both directions",
	"quartet.identity.v1.IdentityService/ReportKeyUse": "between services",
	"quartet.audit.v1.AuditService/RecordAudit":        "between services",
	"quartet.backup.v1.BackupService/ExportBackup":     "a stream of a deployment's whole state, for quartet backup",
}

// Every RPC has a row in the policy, a line in docs/roles.md, and an address or a reason why
// it has none. A method without a row is refused for everybody, which shows only when it is
// called.
func TestX15_EveryMethodHasAPolicyARouteAndDocumentation(t *testing.T) {
	raw := must.Value(os.ReadFile(filepath.Join("..", "..", "docs", "roles.md")))(t)
	roles, rest := string(raw), string(protofiles.RESTMap)
	seen := map[string]bool{}
	planetest.Methods(func(_ string, md protoreflect.MethodDescriptor, _ bool) {
		service, name := string(md.Parent().FullName()), string(md.Name())
		full := service + "/" + name
		seen[full] = true
		if roles, _ := identity.Allowed("/" + full); len(roles) == 0 {
			t.Errorf("%s has no row in services/identity/policy.go", full)
		}
		short := service[strings.LastIndex(service, ".")+1:]
		if !strings.Contains(roles, name) || !strings.Contains(roles, short) {
			t.Errorf("%s is not in docs/roles.md: make generate", full)
		}
		mapped := strings.Contains(rest, "selector: "+service+"."+name+",")
		reason, exempt := notREST[full]
		switch {
		case !mapped && !exempt:
			t.Errorf("%s has no line in proto/gateway.yaml; add one, or a reason to notREST in this test", full)
		case mapped && exempt:
			t.Errorf("%s has a line in proto/gateway.yaml although %q", full, reason)
		}
	})
	for full := range notREST {
		if !seen[full] {
			t.Errorf("notREST names %s, which is no method", full)
		}
	}
}

// Every event type of a plane is named in the doc.go of the plane that emits it, so that a
// reader finds who writes what.
func TestEveryEventIsInThePlanesDoc(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		plane, ok := strings.CutPrefix(string(f.Package()), "quartet.")
		if !ok || !strings.HasSuffix(f.Path(), "_event.proto") {
			return true
		}
		plane = strings.TrimSuffix(plane, ".v1")
		doc := must.Value(os.ReadFile(filepath.Join("..", "..", "services", plane, "doc.go")))(t)
		for i := range f.Messages().Len() {
			name := snake(string(f.Messages().Get(i).Name()))
			if !strings.Contains(strings.ReplaceAll(string(doc), "\n// ", " "), name) {
				t.Errorf("services/%s/doc.go does not name %s among what the plane emits", plane, name)
			}
		}
		return true
	})
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
