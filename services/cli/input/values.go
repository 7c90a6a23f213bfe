package input

import (
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/services/cli/exit"
)

// maxText is the most that is read from a file or from stdin: the size of the
// largest request (SPEC X8).
const maxText = 4 << 20

// Enum reads an enum value by its short name ("needs_input" or "needs-input") or
// by its full name. An empty text is the zero value.
func Enum[E interface {
	~int32
	protoreflect.Enum
}](flag, text string) (E, error) {
	var zero E
	if text == "" {
		return zero, nil
	}
	want := strings.ToLower(strings.ReplaceAll(text, "-", "_"))
	values := zero.Descriptor().Values()
	for i := range values.Len() {
		v := E(values.Get(i).Number())
		if v != zero && (pbjson.EnumText(v) == want || strings.EqualFold(string(values.Get(i).Name()), text)) {
			return v, nil
		}
	}
	return zero, exit.UsageError(fmt.Sprintf("--%s %s is unknown; use one of %s", flag, text,
		strings.Join(EnumNames[E](), ", ")))
}

// EnumNames returns the short names of all values but the zero value, in the order of their numbers in the API.
func EnumNames[E interface {
	~int32
	protoreflect.Enum
}]() []string {
	var zero E
	values := zero.Descriptor().Values()
	var names []string
	for i := range values.Len() {
		if v := E(values.Get(i).Number()); v != zero {
			names = append(names, pbjson.EnumText(v))
		}
	}
	return names
}

// Choices lets a shell complete the value of a flag of cmd with one of these.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	// An error would say that there is no such flag.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// EnumChoices is Choices with the names of an enum.
func EnumChoices[E interface {
	~int32
	protoreflect.Enum
}](cmd *cobra.Command, flag string) {
	Choices(cmd, flag, EnumNames[E]()...)
}

// singleUnit matches a duration of one unit. One that time.ParseDuration refuses
// overflows, so it is longer than 292 years.
var singleUnit = regexp.MustCompile(`^[0-9]+[smhd]$`)

// maxDays keeps days within the range of time.Duration. It exceeds the longest
// duration that servers accept, so that they say what is too long.
const maxDays = 100_000

// Duration reads a duration: 90s, 5m, 1h30m, or days as in 2d. An empty text is
// nil.
func Duration(flag, text string) (*durationpb.Duration, error) {
	if text == "" {
		return nil, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= maxDays {
			return durationpb.New(time.Duration(n) * 24 * time.Hour), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil && singleUnit.MatchString(text) {
		return nil, exit.UsageError(fmt.Sprintf("--%s %s is too long a duration; the maximum is 876000h (100 years)",
			flag, text))
	}
	if err != nil || d < 0 {
		return nil, exit.UsageError(fmt.Sprintf("--%s %s is not a duration; write 90s, 5m, 1h30m or 2d", flag, text))
	}
	return durationpb.New(d), nil
}

// Time reads a time: RFC 3339, a date and time in the given zone, or a duration
// from now. An empty text is nil.
func Time(flag, text string, zone *time.Location) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return timestamppb.New(t), nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return timestamppb.New(t), nil
		}
	}
	if d, err := Duration(flag, text); err == nil {
		return timestamppb.New(time.Now().Add(d.AsDuration())), nil
	}
	return nil, exit.UsageError(fmt.Sprintf("--%s %s is not a time; write 2026-01-31T17:00:00Z (RFC 3339) or a "+
		"duration from now such as 5m", flag, text))
}

// sizeUnits are the units of Bytes. Every name but the last ends with B, so the
// longer names come before it.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}, {"", 1}}

// Bytes reads a positive size in bytes such as 512MiB. An empty text is 0.
func Bytes(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err == nil && n > 0 && n <= math.MaxInt64/u.bytes {
			return n * u.bytes, nil
		}
	}
	return 0, exit.UsageError(fmt.Sprintf("--%s %q: give bytes as 1048576, 512KiB, 512MiB or 2GiB", flag, text))
}

// Text returns text as it was typed; "-" stands for the content of stdin, and
// "@FILE" for that of a file. Content of more than 4 MiB is refused.
func Text(cmd *cobra.Command, text string) (string, error) {
	var from io.Reader
	switch {
	case text == "-":
		from = cmd.InOrStdin()
	case strings.HasPrefix(text, "@"):
		f, err := os.Open(text[1:])
		if err != nil {
			return "", exit.UsageError(err.Error())
		}
		defer f.Close()
		from = f
	default:
		return text, nil
	}
	b, err := io.ReadAll(io.LimitReader(from, maxText+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxText {
		return "", exit.UsageError("the text is larger than 4 MiB")
	}
	return string(b), nil
}

// Todos reads the entries of a checklist: "[x] text" is completed, "[>] text" in
// progress, and "[ ] text" or the text alone pending.
func Todos(lines []string) []*workv1.TodoItem {
	var out []*workv1.TodoItem
	for _, line := range lines {
		item := &workv1.TodoItem{Text: line, State: workv1.TodoState_TODO_STATE_PENDING}
		for prefix, state := range map[string]workv1.TodoState{
			"[x]": workv1.TodoState_TODO_STATE_COMPLETED,
			"[>]": workv1.TodoState_TODO_STATE_IN_PROGRESS,
			"[ ]": workv1.TodoState_TODO_STATE_PENDING,
		} {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				item.Text, item.State = strings.TrimSpace(rest), state
			}
		}
		out = append(out, item)
	}
	return out
}
