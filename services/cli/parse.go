package cli

import (
	"fmt"
	"io"
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
)

// maxText is what a file or stdin may bring: the largest request (SPEC X8).
const maxText = 4 << 20

// enum reads a value in its short form ("needs_input") or by its full name.
// Empty is not set.
func enum[E interface {
	~int32
	protoreflect.Enum
}](flag, text string) (E, error) {
	var zero E
	if text == "" {
		return zero, nil
	}
	d := zero.Descriptor()
	want := strings.ToLower(strings.ReplaceAll(text, "-", "_"))
	prefix := enumPrefix(d)
	var names []string
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		if v.Number() == 0 {
			continue
		}
		name := strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
		if name == want || strings.EqualFold(string(v.Name()), text) {
			return E(v.Number()), nil
		}
		names = append(names, name)
	}
	return zero, usage(fmt.Sprintf("--%s %s is unknown; use one of %s", flag, text, strings.Join(names, ", ")))
}

// wholeSpan is a duration of one unit; what of it cannot be read is beyond 273 years.
var wholeSpan = regexp.MustCompile(`^[0-9]+[smhd]$`)

// span reads a duration: 90s, 5m, 1h30m, and days as 2d.
func span(flag, text string) (*durationpb.Duration, error) {
	if text == "" {
		return nil, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 100_000 { // 273 years: what is too far is the server's to say
			return durationpb.New(time.Duration(n) * 24 * time.Hour), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil && wholeSpan.MatchString(text) {
		return nil, usage(fmt.Sprintf("--%s %s is too long a duration; nothing takes more than 876000h (100 years)", flag, text))
	}
	if err != nil || d < 0 {
		return nil, usage(fmt.Sprintf("--%s %s is no duration; write 90s, 5m, 1h30m or 2d", flag, text))
	}
	return durationpb.New(d), nil
}

// point reads a time: RFC 3339, a date and time of this zone, or a duration
// from now.
func point(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return timestamppb.New(t), nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return timestamppb.New(t), nil
		}
	}
	if d, err := span(flag, text); err == nil {
		return timestamppb.New(time.Now().Add(d.AsDuration())), nil
	}
	return nil, usage(fmt.Sprintf("--%s %s is no time; write 2026-01-31T17:00:00Z (RFC 3339) or a duration from now such as 5m", flag, text))
}

// content is text as typed; "-" is stdin and "@FILE" a file.
func content(cmd *cobra.Command, text string) (string, error) {
	var from io.Reader
	switch {
	case text == "-":
		from = cmd.InOrStdin()
	case strings.HasPrefix(text, "@"):
		f, err := os.Open(text[1:])
		if err != nil {
			return "", usage(err.Error())
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
		return "", usage("the text is larger than 4 MiB")
	}
	return string(b), nil
}

// todos reads checklist entries: "[x] done", "[>] in progress", "[ ] pending"
// or the bare text.
func todos(lines []string) []*workv1.TodoItem {
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

// paging is the flags of lists.
type paging struct {
	size  int32
	token string
}

func (p *paging) flags(cmd *cobra.Command) {
	cmd.Flags().Int32Var(&p.size, "page-size", 0, "How many at once, at most 500 (default: the server's)")
	cmd.Flags().StringVar(&p.token, "page-token", "", "Go on where an earlier page ended")
}
