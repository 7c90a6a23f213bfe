package spec

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is one requirement of docs/spec.
type row struct{ file, id, text, tests string }

var rowLine = regexp.MustCompile(`(?m)^\| ([A-Z]\d+(?:\.\d+)?|S2-\d{3}) \| (.+) \| (.+) \|$`)

// rows reads the requirements, and refuses an id that is there twice.
func rows(t *testing.T) map[string]row {
	t.Helper()
	all := map[string]row{}
	for _, f := range files(t, ".md") {
		if path.Dir(f.path) != "docs/spec" {
			continue
		}
		for _, m := range rowLine.FindAllStringSubmatch(f.text, -1) {
			require.Empty(t, all[m[1]].file, "%s: %s is in %s as well", f.path, m[1], all[m[1]].file)
			all[m[1]] = row{f.path, m[1], m[2], m[3]}
		}
	}
	require.Greater(t, len(all), 600)
	for n := 1; n <= 474; n++ {
		require.Contains(t, all, fmt.Sprintf("S2-%03d", n))
	}
	return all
}

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// TestEveryRequirementNamesItsTests looks for each test that a row names among the
// tests and transcripts of the whole repository.
func TestEveryRequirementNamesItsTests(t *testing.T) {
	known := map[string]bool{}
	for _, f := range files(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(f.text, -1) {
			known[m[1]] = true
		}
	}
	for _, f := range files(t, ".txt") {
		if path.Base(path.Dir(f.path)) == "testdata" {
			known[path.Base(f.path)] = true
		}
	}
	for id, r := range rows(t) {
		if why, ok := strings.CutPrefix(r.tests, "not testable: "); ok {
			if len(why) < 10 {
				t.Errorf("%s: %s has no reason why it is not testable", r.file, id)
			}
			continue
		}
		names := quoted.FindAllStringSubmatch(r.tests, -1)
		if len(names) == 0 {
			t.Errorf("%s: %s names no test, and does not say why", r.file, id)
		}
		for _, m := range names {
			name, _, _ := strings.Cut(m[1], "/")
			if !known[name] {
				t.Errorf("%s: %s names %s, and there is no such test or transcript", r.file, id, m[1])
			}
		}
	}
}

// Citations are SPEC X1, SPEC X2, X3, SPEC W4–W10 and P1, S2-012, S2-012 to S2-015.
var (
	continued = regexp.MustCompile(`\n[ \t]*//+[ \t]?`)
	specList  = regexp.MustCompile(
		`\bSPEC ([A-Z]\d+(?:\.\d+)?(?:(?:, and |, | and | or | to |–|-)[A-Z]\d+(?:\.\d+)?)*)`)
	specRange = regexp.MustCompile(`([A-Z])(\d+)(?: to |–|-)[A-Z](\d+)`)
	specOne   = regexp.MustCompile(`[A-Z]\d+(?:\.\d+)?`)
	boardOnly = regexp.MustCompile(`\bS2-(\d{1,3})(?:(?: to |–|-)S2-(\d{1,3}))?`)
	nowhere   = regexp.MustCompile(
		`upstream #\d+|SPEC §\s?\d*|SPEC section \d+|ARCHITECTURE (?:§|section )\d+|ARCHITECTURE§\d+|\bS[0134]\b[^-]|\bS2(?:'s| \(|"| "| "|,| writes| names)`)
	// products is what others call so: a storage service and the servers that speak its protocol.
	products = regexp.MustCompile(`\b(?:Amazon S3|S3 servers?)\b`)
)

// cited returns the ids that a text cites.
func cited(text string) (ids []string) {
	text = continued.ReplaceAllString(text, " ")
	for _, m := range specList.FindAllStringSubmatch(text, -1) {
		for _, r := range specRange.FindAllStringSubmatch(m[1], -1) {
			from, _ := strconv.Atoi(r[2])
			to, _ := strconv.Atoi(r[3])
			for n := from; n <= to; n++ {
				ids = append(ids, r[1]+strconv.Itoa(n))
			}
		}
		for _, id := range specOne.FindAllString(m[1], -1) {
			if id[0] != 'S' { // TestNothingOutsideIsCited has those
				ids = append(ids, id)
			}
		}
	}
	for _, m := range boardOnly.FindAllStringSubmatch(text, -1) {
		from, _ := strconv.Atoi(m[1])
		to := from
		if m[2] != "" {
			to, _ = strconv.Atoi(m[2])
		}
		for n := from; n <= to; n++ {
			ids = append(ids, fmt.Sprintf("S2-%03d", n))
		}
	}
	return ids
}

func TestCitationsAreRead(t *testing.T) {
	require.Equal(t, []string{"X2", "X3"}, cited("// ... (SPEC X2,\n\t// X3)."))
	require.Equal(t, []string{"W4", "W5", "W6", "W4", "W6", "P1"}, cited("SPEC W4–W6, P1"))
	require.Equal(t, []string{"A6.2"}, cited("as SPEC A6.2 says"))
	require.Equal(t, []string{"S2-012", "S2-013", "S2-014"}, cited("(S2-012 to\n// S2-014)"))
	require.Empty(t, cited("no SPEC here, and S3 neither"))
}

// TestEveryCitationHasARow finds the row of every id that Go and proto files cite.
func TestEveryCitationHasARow(t *testing.T) {
	all := rows(t)
	n := 0
	for _, f := range files(t, ".go", ".proto") {
		if pathIsThis(f.path) {
			continue
		}
		for _, id := range cited(f.text) {
			n++
			if _, ok := all[id]; !ok {
				t.Errorf("%s cites %s, and docs/spec has no such row", f.path, id)
			}
		}
	}
	require.Greater(t, n, 100)
}

// TestNothingOutsideIsCited finds references to documents that are not in the
// repository.
func TestNothingOutsideIsCited(t *testing.T) {
	for _, f := range files(t, ".go", ".proto", ".md") {
		if pathIsThis(f.path) {
			continue
		}
		found := nowhere.FindAllString(products.ReplaceAllString(continued.ReplaceAllString(f.text, " "), ""), -1)
		if len(found) > 0 {
			t.Errorf("%s refers to what is not in the repository: %q", f.path, found)
		}
	}
}

// pathIsThis reports whether a file belongs to these tests, which quote what they look for.
func pathIsThis(p string) bool {
	switch p {
	case "tests/spec/citations_test.go", "tests/spec/surfaces_test.go", "tests/spec/words_test.go":
		return true
	}
	return false
}
