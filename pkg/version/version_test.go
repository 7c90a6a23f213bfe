package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABuildSaysWhatItIs(t *testing.T) {
	recorded := func(settings ...string) *debug.BuildInfo {
		out := &debug.BuildInfo{}
		for i := 0; i < len(settings); i += 2 {
			out.Settings = append(out.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return out
	}
	const commit = "4fb5b58a2c11d0e9b7f6a5c4d3e2f1a0b9c8d7e6"
	for name, c := range map[string]struct {
		linked, linkedDate string
		recorded           *debug.BuildInfo
		short              string
		revision, date     string
	}{
		"of a repository": {"", "", recorded("vcs.revision", commit, "vcs.time", "2026-01-02T03:04:05Z",
			"vcs.modified", "false"), "0.1.0-4fb5b58a2c11", commit, "2026-01-02T03:04:05Z"},
		"of changed files": {
			"", "", recorded("vcs.modified", "true", "vcs.revision", commit),
			"0.1.0-4fb5b58a2c11+dirty", commit + "+dirty", "",
		},
		"of an archive":    {"", "", recorded(), "0.1.0", "", ""},
		"without a record": {"", "", nil, "0.1.0", "", ""},
		"as the linker was told": {
			commit, "2026-02-03T00:00:00Z", recorded("vcs.revision", "other"),
			"0.1.0-4fb5b58a2c11", commit, "2026-02-03T00:00:00Z",
		},
		"with a short revision": {"abc", "", nil, "0.1.0-abc", "abc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := describe("0.1.0", c.linked, c.linkedDate, c.recorded)
			require.Equal(t, c.short, got.String())
			require.Equal(t, c.revision, got.Revision)
			require.Equal(t, c.date, got.Date)
			require.Contains(t, got.Long(), "quartet 0.1.0\n")
			require.Contains(t, got.Long(), "Apache-2.0")
		})
	}
}

func TestTheVersionIsOneOfSemanticVersioning(t *testing.T) {
	require.Regexp(t, `^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`, Get().Version)
}
