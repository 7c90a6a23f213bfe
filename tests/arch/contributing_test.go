package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// The places that a recipe of CONTRIBUTING.md names exist. <plane> stands for any plane, so one
// that has the place is enough.
func TestTheRecipesNamePlacesThatExist(t *testing.T) {
	raw := must.Value(os.ReadFile(filepath.Join("..", "..", "CONTRIBUTING.md")))(t)
	_, recipes, ok := strings.Cut(string(raw), "\n## Recipes\n")
	require.True(t, ok)
	recipes, _, _ = strings.Cut(recipes, "\n## ")
	paths := regexp.MustCompile("`((?:proto|pkg|services|docs|tests|deploy|cmd)/[^` "+
		"]*|[A-Z][A-Za-z.]+\\.md|docker-compose\\.yml)`").FindAllStringSubmatch(recipes, -1)
	require.Greater(t, len(paths), 20)
	for _, m := range paths {
		pattern := strings.ReplaceAll(m[1], "<plane>", "*")
		found := must.Value(filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern))))(t)
		if len(found) == 0 {
			t.Errorf("CONTRIBUTING.md names %s, which does not exist", m[1])
		}
	}
	// Identifiers that recipes send a reader to.
	for _, c := range [][2]string{
		{"services/work/derive/readiness.go", "func Shallow("},
		{"services/work/derive/readiness.go", "func View("},
		{"services/work/update_work_item.go", "func validateUpdate("},
		{"services/work/update_work_item.go", "func decideUpdate("},
		{"services/work/update_every_field_test.go", "func TestX6_AViewHasEveryFieldOfTheRecord("},
		{"services/work/create_work_item.go", "func validateCreate("},
		{"services/work/create_work_item.go", "func decideCreate("},
		{"services/work/update_every_field_test.go", "func TestW5_AnUpdateOfOneFieldIsStored("},
		{"services/work/update_every_field_test.go", "func TestW2_EveryFieldOfTheRequestIsStored("},
		{"services/work/events.go", "eventRows = "},
		{"services/waiting/events.go", "eventRows = "},
		{"services/identity/events.go", "eventRows = "},
		{"services/agent/state/events.go", "eventRows = "},
		{"services/task/model/events.go", "eventRows = "},
		{"services/board/model/events.go", "eventRows = "},
		{"services/scheduler/listen.go", "wakes = "},
		{"services/scheduler/listen_test.go", "func TestD1_EveryEventIsDeclared("},
		{"tests/arch/api_test.go", "notREST ="},
		{"pkg/journal/event.go", "func UnknownEvent("},
		{"services/app/config.go", ") Flags("},
		{"services/app/config.go", ") Complete("},
	} {
		raw := must.Value(os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(c[0]))))(t)
		require.Contains(t, string(raw), c[1], c[0])
	}
}

// The pages that a newcomer reads first exist and are short enough to be read.
func TestTheFirstPagesAreShort(t *testing.T) {
	page := func(name string) string {
		return string(must.Value(os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name))))(t))
	}
	contributing := page("CONTRIBUTING.md")
	_, table, _ := strings.Cut(contributing, "\n## New here?")
	table, _, _ = strings.Cut(table, "\n## ")
	links := regexp.MustCompile(`(?m)^\| \d\. .*\]\(([^)]+)\)`).FindAllStringSubmatch(table, -1)
	require.Len(t, links, 4) // the fifth page is CONTRIBUTING.md
	words := len(strings.Fields(contributing))
	for _, m := range links {
		text, _, _ := strings.Cut(page(m[1]), "\n## A cluster with faults\n")
		words += len(strings.Fields(text))
	}
	require.LessOrEqual(t, words, 8000, "words of the five pages together")
}
