package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quartet/pkg/must"
)

// wallClock has the packages outside the planes and the scheduler that read the machine's
// clock or start its timers, each with the reason. Everything else takes the time from
// pkg/clock, so that tests set it. context.WithTimeout is no part of this: it bounds a
// call and decides nothing.
var wallClock = map[string]string{
	"pkg/authority": "certificates are dated",
	"pkg/bus":       "delays of delivery are measured for metrics, and a publisher waits for the broker",
	"pkg/certs":     "certificate files are read again from time to time",
	"pkg/client":    "programs outside have no clock of ours",
	"pkg/admission": "rates of callers are in real time",
	"pkg/clock":     "it is the machine's clock",
	"pkg/confine":   "processes of the operating system are reaped in real time",
	"pkg/connlimit": "connections of the operating system are bounded in real time",
	"pkg/id":        "ids begin with the time, so that they sort by it",
	"pkg/journal": "waiting for the broker and durations for metrics; events get their time from " +
		"pkg/clock",
	"pkg/journal/follower": "the broker is asked for the end of a journal from time to time",
	"pkg/journal/framelog": "the chain is compared with the broker's from time to time, and what readers reported is " +
		"believed for a while",
	"pkg/journal/jetlog":        "waiting for the broker",
	"pkg/journal/archive":       "a stop waits for the broker for a moment",
	"pkg/journal/journaltest":   "a test waits for the broker",
	"pkg/life":                  "modules of a process repeat housekeeping in real time",
	"pkg/lease":                 "leases of partitions are renewed against the broker, on monotonic time",
	"pkg/natsd":                 "connection deadlines and the expiry of certificates",
	"pkg/proctree":              "processes of the operating system end in real time",
	"pkg/retry":                 "pauses between attempts",
	"pkg/rpc":                   "durations for logs and metrics, expiry of credentials, pauses between attempts",
	"pkg/journal/witness":       "files are synced, and a bucket is written, once a second",
	"pkg/sandboxes":             "processes run, and sandboxes are kept for a while, in real time",
	"pkg/tracing":               "a failing collector is logged once in a while",
	"pkg/usernet":               "flows of packets end in real time",
	"pkg/yield":                 "computations pause in real time",
	"services/app":              "garbage collection, samples of gauges, start and stop",
	"services/app/installation": "the result of an examination is used again for a moment",
	"services/backup":           "durations for logs, and the date of an archive",
	"services/cli/admin":        "a person waits: progress, and the expiry of the keys that it mints",
	"services/cli/boards":       "a person waits",
	"services/cli/events":       "a person waits",
	"services/cli/input":        "a duration that a person enters is counted from now",
	"services/cli/local":        "a server that was started becomes ready in real time",
	"services/cli/session":      "a person waits",
	"services/cli/workers":      "a person waits",
	"services/doctor":           "round trips and the expiry of certificates",
	"services/gateway":          "deadlines of connections, durations for metrics, and clients that do not receive",
	"services/identity":         "the identity provider's keys are fetched and its tokens expire by the real time",
	"services/mcp":              "progress while a call runs",
	"services/runner":           "a model provider is called, with its limits in real time",
	"services/work/homes":       "the times of a plan file are the operating system's",
	"services/worker":           "processes run in real time",
	"pkg/natsd/salvage":         "how long reading took is logged",
	"services/storage/datadir":  "the date of a copy",
	"services/storage/repair":   "acknowledgements of the broker are waited for",
	"services/storage/verify":   "disks are read at a rate in real time",
}

// clockFunctions read the machine's clock or start its timers.
var clockFunctions = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}

// TestTheWallClockIsReadWhereItMayBe finds uses of the machine's clock in non-test code.
func TestTheWallClockIsReadWhereItMayBe(t *testing.T) {
	root := must.Value(filepath.Abs(filepath.Join("..", "..")))(t)
	used := map[string]bool{}
	for _, p := range packages(t) {
		name := must.Value(filepath.Rel(root, p.Dir))(t)
		if !strings.HasPrefix(name, "pkg/") && !strings.HasPrefix(name, "services/") ||
			strings.HasPrefix(name, "pkg/pb/") {
			continue
		}
		for _, file := range p.GoFiles {
			for _, at := range clockUses(t, filepath.Join(p.Dir, file)) {
				used[name] = true
				if _, ok := wallClock[name]; !ok {
					t.Errorf("%s/%s:%s reads the machine's clock; take the time from pkg/clock", name, file, at)
				}
			}
		}
	}
	for name := range wallClock {
		if !used[name] {
			t.Errorf("%s is listed and does not read the machine's clock", name)
		}
	}
}

// clockUses returns the places in a file that use a function of clockFunctions.
func clockUses(t *testing.T, path string) []string {
	fset := token.NewFileSet()
	f := must.Value(parser.ParseFile(fset, path, nil, parser.SkipObjectResolution))(t)
	var at []string
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockFunctions, sel.Sel.Name) {
			pos := fset.Position(sel.Pos())
			at = append(at, pos.String()[len(path)+1:]+" time."+sel.Sel.Name)
		}
		return true
	})
	return at
}
