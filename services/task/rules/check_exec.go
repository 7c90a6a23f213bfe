package rules

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Limits of ExecCommand (SPEC T1).
const (
	DefaultYield     = 10 * time.Second
	MaxYield         = 45 * time.Second
	DefaultTimeout   = time.Hour
	MaxTimeout       = 24 * time.Hour
	DefaultMaxOutput = 32_000  // bytes
	MaxMaxOutput     = 256_000 // bytes

	// Linux limits one argument to 128 KiB, and cmd is passed as one argument.
	maxCommandBytes = 64 << 10
	maxArgs         = 1000
	maxEnvBytes     = 64 << 10 // of all names and values together
	maxEnvEntries   = 256
	MaxWorkdirBytes = 4096
	labelChars      = 120 // see commandLabel

	// reservedEnv is the prefix of the variables by which a worker identifies its
	// processes.
	reservedEnv = "QUARTET_"
)

// CheckExec validates a request and returns the command as it will be stored, with a
// clean working directory and with the default timeout if it has none.
func CheckExec(req *taskv1.ExecCommandRequest) (*taskv1.CommandSpec, error) {
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return nil, err
	}
	if item := req.GetWorkItemId(); item != "" {
		if err := fault.Name("work_item_id", item); err != nil {
			return nil, err
		}
	}
	if n := req.GetMaxOutput(); n < 0 || n > MaxMaxOutput {
		return nil, fault.LimitExceeded.Newf("max_output is %d; it must be 0 (default) to %d bytes", n, MaxMaxOutput).
			WithField("max_output", "must be 0 to 256000")
	}
	if _, err := DurationIn("yield_time", req.GetYieldTime(), DefaultYield, 0, MaxYield); err != nil {
		return nil, err
	}
	spec := req.GetCommand()
	timeout, err := DurationIn("command.timeout", spec.GetTimeout(), DefaultTimeout, time.Millisecond, MaxTimeout)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(*taskv1.CommandSpec) error{
		checkProgram, checkEnv, checkWorkdir, checkPlacement,
		checkLimits,
	} {
		if err := check(spec); err != nil {
			return nil, err
		}
	}
	spec = proto.CloneOf(spec)
	spec.Timeout = durationpb.New(timeout)
	if spec.GetWorkdir() != "" {
		spec.Workdir = path.Clean(spec.GetWorkdir())
	}
	return spec, nil
}

// DurationIn returns an optional duration, or def if it is nil. It returns LIMIT_EXCEEDED for
// one that is not within low and high.
func DurationIn(field string, d *durationpb.Duration, def, low, high time.Duration) (time.Duration, error) {
	if d == nil {
		return def, nil
	}
	v := d.AsDuration()
	if d.CheckValid() != nil || v < low || v > high {
		return 0, fault.LimitExceeded.New(field+" is "+v.String()+"; it must be "+low.String()+" to "+high.String(),
			"field", field, "value", v.String(), "limit", high.String()).
			WithField(field, "must be "+low.String()+" to "+high.String())
	}
	return v, nil
}

// checkProgram validates cmd or argv, of which a command has exactly one.
func checkProgram(spec *taskv1.CommandSpec) error {
	cmd, argv := spec.GetCmd(), spec.GetArgv()
	switch {
	case cmd == "" && len(argv) == 0:
		return fault.InvalidArgument.New("command has neither cmd nor argv; give a shell line in cmd, or a program "+
			"and its arguments in argv").
			WithField("command", "needs cmd or argv")
	case cmd != "" && len(argv) > 0:
		return fault.InvalidArgument.New("command has both cmd and argv; give one of them").
			WithField("command", "takes one of cmd and argv")
	}
	if err := fault.TextBytes("command.cmd", cmd, maxCommandBytes, false); err != nil {
		return err
	}
	if cmd != "" && strings.TrimSpace(cmd) == "" {
		return fault.Invalid("command.cmd", cmd, "must not be blank")
	}
	if err := fault.Entries("command.argv", len(argv), maxArgs); err != nil {
		return err
	}
	total := 0
	for _, arg := range argv {
		if err := fault.TextBytes("command.argv", arg, maxCommandBytes, false); err != nil {
			return err
		}
		total += len(arg) + 1
	}
	if len(argv) > 0 && argv[0] == "" {
		return fault.Invalid("command.argv[0]", "", "must name a program")
	}
	return fault.Bytes("command.argv", total, maxCommandBytes+maxArgs)
}

// checkEnv validates the names and the size of the variables of a command.
func checkEnv(spec *taskv1.CommandSpec) error {
	env := spec.GetEnv()
	if err := fault.Entries("command.env", len(env), maxEnvEntries); err != nil {
		return err
	}
	total := 0
	// Sorted, so that the same request always gets the same refusal.
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName(name) {
			return fault.Invalid("command.env", name, "must be named [A-Za-z_][A-Za-z0-9_]{0,127}")
		}
		if strings.HasPrefix(name, reservedEnv) {
			return fault.Invalid("command.env", name, "must not begin with "+reservedEnv+
				", which workers use to know their processes")
		}
		if err := fault.TextBytes("command.env", env[name], maxEnvBytes, false); err != nil {
			return err
		}
		total += len(name) + len(env[name]) + 2
	}
	return fault.Bytes("command.env", total, maxEnvBytes)
}

// envName reports whether a text can be the name of a variable.
func envName(s string) bool {
	if s == "" || len(s) > fault.MaxNameChars {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// checkWorkdir validates the working directory of a command, which may be empty; otherwise it
// must be absolute.
func checkWorkdir(spec *taskv1.CommandSpec) error {
	dir := spec.GetWorkdir()
	if dir == "" {
		return nil
	}
	if err := fault.TextBytes("command.workdir", dir, MaxWorkdirBytes, false); err != nil {
		return err
	}
	if !path.IsAbs(dir) {
		return fault.Invalid("command.workdir", dir, "must be an absolute path")
	}
	return nil
}
