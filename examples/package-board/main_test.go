package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The board of this very repository: a step a package, and each needs what it
// imports of the repository and nothing else.
func TestBoardOfThisRepository(t *testing.T) {
	var out strings.Builder
	require.NoError(t, write(&out, "../..", "packages", "go", []string{"./pkg/..."}))
	var b board
	require.NoError(t, yaml.Unmarshal([]byte(out.String()), &b))
	steps := map[string]step{}
	for _, s := range b.Steps {
		steps[s.ID] = s
	}
	require.Len(t, steps, len(b.Steps))
	require.Equal(t, "quartet/pkg/journal/jetlog", steps["quartet-pkg-journal-jetlog"].Title)
	require.Equal(t, []string{
		"quartet-pkg-journal-framelog", "quartet-pkg-journal-snapshot", "quartet-pkg-retry",
	}, steps["quartet-pkg-journal-jetlog"].Needs)
	for _, s := range b.Steps {
		for _, need := range s.Needs {
			require.Contains(t, steps, need)
		}
	}
	require.ErrorContains(t, write(&out, "../..", "packages", "go", []string{"./no-such-folder"}), "no-such-folder")
}

func TestStepID(t *testing.T) {
	require.Equal(t, "example-com-a_b-v2", stepID("Example.com/a_b/v2"))
	long := stepID(strings.Repeat("p/", 100) + "end")
	require.LessOrEqual(t, len(long), 128)
	require.True(t, strings.HasSuffix(long, "p-end"))
	require.NotEqual(t, byte('-'), long[0])
}
