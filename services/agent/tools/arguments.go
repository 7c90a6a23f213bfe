package tools

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
)

// Models write arguments in forms that the request messages do not accept. Only tools
// accept these forms: REST and gRPC stay strict.

// aliases has, by the name of an argument, a second name that calls may use for it.
var aliases = map[string]string{"board_id": "task_id", "wal_name": "wal_filename"}

// missingArgument refuses a call without a required argument, by the tool's own name for
// it. An argument that is present and empty is accepted here.
func (t Tool) missingArgument(args map[string]any) error {
	for _, name := range t.Required {
		if args[name] == nil && (aliases[name] == "" || args[aliases[name]] == nil) {
			return fault.InvalidArgument.Newf("%s is required", name).With("field", name).WithField(name, "is required")
		}
	}
	if len(t.OneOf) > 0 && !slices.ContainsFunc(t.OneOf, func(name string) bool { return args[name] != nil }) {
		return fault.InvalidArgument.Newf("none of %s is given; give one, if only an empty one",
			strings.Join(t.OneOf, " and ")).
			With("field", t.OneOf[0]).WithField(t.OneOf[0], "is required")
	}
	return nil
}

// durationSyntax matches a duration as messages accept it.
var durationSyntax = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?s$`)

// durations rewrites, in place and in nested messages too, durations such as "90m" or "1h30m" to
// the form that messages accept, such as "5400s". Values in that form are left alone: they may be
// longer than a time.Duration, and then the limit of their field refuses them. Any other value
// except null is refused. path is the prefix of field names in errors.
func durations(args map[string]any, m protoreflect.MessageDescriptor, path string) error {
	for name, v := range args {
		fd := m.Fields().ByName(protoreflect.Name(name))
		if fd == nil || fd.Message() == nil || fd.IsMap() {
			continue
		}
		if list, ok := v.([]any); ok && fd.IsList() {
			for i, v := range list {
				if below, ok := v.(map[string]any); ok {
					if err := durations(below, fd.Message(), fmt.Sprintf("%s%s[%d].", path, name, i)); err != nil {
						return err
					}
				}
			}
			continue
		}
		if below, ok := v.(map[string]any); ok {
			if err := durations(below, fd.Message(), path+name+"."); err != nil {
				return err
			}
			continue
		}
		if fd.Message().FullName() != "google.protobuf.Duration" || v == nil {
			continue
		}
		text, ok := v.(string)
		if ok && durationSyntax.MatchString(text) {
			continue
		}
		d, err := time.ParseDuration(text)
		if !ok || err != nil {
			return fault.Invalid(path+name, fmt.Sprint(v),
				`must be a duration with its units, such as "90s", "15m" or "1h30m"`)
		}
		args[name] = asSeconds(d)
	}
	return nil
}

// asSeconds writes a duration as messages accept it, to the nanosecond.
func asSeconds(d time.Duration) string {
	whole := strings.TrimRight(strings.TrimRight(fmt.Sprintf("%d.%09d", d/time.Second, (d%time.Second).Abs()), "0"),
		".")
	if d < 0 && d > -time.Second {
		whole = "-" + whole
	}
	return whole + "s"
}
