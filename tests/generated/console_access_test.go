package generated

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/cli/output"
)

// letters are the columns of docs/roles.md in the table of the console; installation_admin may do what admin may.
const letters = "NAORGWI"

// The console offers what docs/roles.md, which is generated from the policy, allows.
func TestG15_TheRolesAreThoseOfThePolicy(t *testing.T) {
	raw := must.Value(os.ReadFile(filepath.Join("..", "..", "services", "console", "ui", "src", "roles.json")))(t)
	var roles map[string]string
	require.NoError(t, json.Unmarshal(raw, &roles))
	require.NotEmpty(t, roles)
	text := must.Value(os.ReadFile(filepath.Join("..", "..", "docs", "roles.md")))(t)
	documented := map[string]string{}
	service := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			service = name[strings.LastIndex(name, ".")+1:]
		}
		cells := strings.Split(line, "|")
		if len(cells) < len(letters)+3 {
			continue
		}
		who := ""
		for i, letter := range letters {
			if strings.TrimSpace(cells[i+2]) == "yes" {
				who += string(letter)
			}
		}
		if strings.Contains(who, "A") {
			who = strings.TrimPrefix(who, "N")
		}
		documented[service+"/"+strings.TrimSpace(cells[1])] = who
	}
	for method, who := range roles {
		require.Equal(t, documented[method], who, method)
	}
}

// What the command line has a command for, the console has a place for.
func TestG15_EveryRemedyHasAPlace(t *testing.T) {
	text := must.Value(os.ReadFile(filepath.Join("..", "..", "services", "console", "ui", "src", "remedy.ts")))(t)
	var methods []string
	for _, m := range regexp.MustCompile(`(?m)^  ([A-Z]\w+): \{ title: "`).FindAllStringSubmatch(string(text), -1) {
		methods = append(methods, m[1])
	}
	require.Equal(t, slices.Sorted(maps.Keys(output.RemedyUsages())), methods)
}
