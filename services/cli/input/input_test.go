package input

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute,
		"2d": 48 * time.Hour, "0": 0,
	} {
		d := must.Value(Duration("x", text))(t, text)
		require.Equal(t, want, d.AsDuration(), text)
	}
	for text, want := range map[string]string{
		"soon": "is not a duration", "-5m": "is not a duration",
		"999999999999999s": "too long", "999999d": "too long",
	} {
		must.Fail(Duration("x", text))(t, want, text)
	}
	require.Nil(t, must.Value(Duration("x", ""))(t))
}

func TestTime(t *testing.T) {
	at := must.Value(Time("x", "2026-01-31T17:00:00Z", time.Local))(t)
	require.Equal(t, time.Date(2026, 1, 31, 17, 0, 0, 0, time.UTC), at.AsTime())
	local := must.Value(Time("x", "2026-01-31 17:00", time.Local))(t)
	require.True(t, time.Date(2026, 1, 31, 17, 0, 0, 0, time.Local).Equal(local.AsTime()))
	before := time.Now()
	require.False(t, must.Value(Time("x", "5m", time.Local))(t).AsTime().Before(before.Add(5*time.Minute)))
	must.Fail(Time("x", "tomorrow", time.Local))(t, "RFC 3339")
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "7": 7, "7B": 7, "2KiB": 2048, "512MiB": 512 << 20,
		"2GiB": 2 << 30,
	} {
		n := must.Value(Bytes("x", text))(t, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"0", "-1", "12XB", "MiB", "9999999999GiB"} {
		must.Fail(Bytes("x", text))(t, "give bytes as", text)
	}
}

// Every form of a name that Enum accepts is the value, and EnumText returns the
// short form.
func TestEnum(t *testing.T) {
	for _, text := range []string{
		"operator_prompt", "operator-prompt", "OPERATOR_PROMPT",
		"MESSAGE_KIND_OPERATOR_PROMPT",
	} {
		kind := must.Value(Enum[agentv1.MessageKind]("kind", text))(t, text)
		require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, kind)
		require.Equal(t, "operator_prompt", pbjson.EnumText(kind))
	}
	require.Zero(t, must.Value(Enum[agentv1.MessageKind]("kind", ""))(t))
	_, err := Enum[agentv1.MessageKind]("kind", "unspecified")
	require.ErrorContains(t, err, "--kind unspecified is unknown; use one of operator_prompt")
}

func TestText(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.SetIn(strings.NewReader("from stdin"))
	file := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(file, []byte("from a file"), 0o600))
	for text, want := range map[string]string{
		"as typed": "as typed", "-": "from stdin", "@" + file: "from a file",
		"": "",
	} {
		require.Equal(t, want, must.Value(Text(cmd, text))(t))
	}
	require.NoError(t, os.WriteFile(file, make([]byte, maxText+1), 0o600))
	must.Fail(Text(cmd, "@"+file))(t, "larger than 4 MiB")
}
