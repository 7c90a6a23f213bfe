package conf

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// others are the variables with the prefix Env that are no settings, and who reads each. They are not
// reported as misspelt, even if they are close to the variable of a setting.
var others = map[string]string{ //nolint:gosec // names of variables, no credentials
	"QUARTET_ADDRESS": "clients", "QUARTET_TOKEN": "clients", "QUARTET_TOKEN_FILE": "clients", "QUARTET_TLS": "clients",
	"QUARTET_CONTEXT":     "clients",
	"QUARTET_TLS_CA_FILE": "clients", "QUARTET_TLS_CERT_FILE": "clients", "QUARTET_TLS_KEY_FILE": "clients",
	"QUARTET_TASK_ID": "commands of workers", "QUARTET_TASK_WORKER": "commands of workers",
	"QUARTET_BOOT_ID": "commands of workers",
	"QUARTET_RUN_ID":  "handlers of steps", "QUARTET_SESSION_ID": "handlers of steps",
	"QUARTET_BOARD_ID": "handlers of steps",
	"QUARTET_STEP_ID":  "handlers of steps", "QUARTET_STEP_TITLE": "handlers of steps",
	"QUARTET_STEP_SUMMARY": "handlers of steps",
	"QUARTET_TAG":          "docker-compose.yml", "QUARTET_HOSTS": "docker-compose.yml",
	"QUARTET_HTTP_PORT": "docker-compose.yml",
	"QUARTET_GRPC_PORT": "docker-compose.yml", "QUARTET_WORKER_TOKEN": "docker-compose.yml",
}

// ofServices matches the variables that Kubernetes, and Docker's old links, give a container for each service
// in its namespace whose name begins with quartet.
var ofServices = regexp.MustCompile(
	`^QUARTET_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

const (
	// ofTests is the prefix of the variables of tests.
	ofTests = Env + "TEST_"
	// near is how many edits a misspelt variable may be away from the right one. For names of at most shortName
	// characters after the prefix, many of which are close to each other, it is nearShort.
	near, nearShort, shortName = 2, 1, 5
	// maxName is the longest name that is compared.
	maxName = 100
)

// Know adds variables that belong to settings of another Set. Load does not report them as misspelt, and reports
// other variables that are close to them.
func (s *Set) Know(variables ...string) {
	for _, name := range variables {
		s.known[name] = true
	}
}

// Variables returns the names of the environment variables of all settings.
func (s *Set) Variables() []string {
	var out []string
	for _, name := range s.names {
		out = append(out, EnvName(name))
		if s.types[name] == "secret" {
			out = append(out, EnvName(name)+"_FILE")
		}
	}
	return out
}

// misspelt returns an error for each variable in the environment whose name begins with Env, is close to the
// variable of a setting or to one that was passed to Know, and is no known one itself. If it were ignored, a server
// would start with a default instead of the value that was meant; misspelt flags and keys of files are refused for
// the same reason. The errors do not contain values, which may be secrets.
func (s *Set) misspelt() error {
	known := maps.Clone(s.known)
	for _, name := range s.Variables() {
		known[name] = true
	}
	all := slices.Sorted(maps.Keys(known))
	for name := range others {
		known[name] = true
	}
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(s.environ())) {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, Env) || known[name] || strings.HasPrefix(name, ofTests) ||
			ofServices.MatchString(name) {
			continue
		}
		if meant := nearest(name, all); meant != "" {
			errs = append(errs, fmt.Errorf("the environment variable %s is no setting; did you mean %s? Otherwise "+
				"unset it", name, meant))
		}
	}
	return errors.Join(errs...)
}

// nearest returns the name in all that is closest to name; "" if none is close enough (see near).
func nearest(name string, all []string) string {
	if len(name) > maxName {
		return ""
	}
	within := near
	if len(name) <= len(Env)+shortName {
		within = nearShort
	}
	best, least := "", within+1
	for _, candidate := range all {
		if d := distance(name, candidate, within); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// distance returns the least number of insertions, deletions, replacements and swaps of adjacent bytes that turn
// a into b. If that is more than most, it returns some number that is more than most.
func distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most {
		return most + 1
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
