package spec

import (
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// The words below were once invented here for things that have names in the
// literature. docs/glossary.md has the names.
var (
	banned        = map[string]bool{}
	bannedPhrases = regexp.MustCompile(`(?i)\bfor\s+ever\b|\bis\s+told\s+to\s+nobody\b|\bstands\s+around\b`)
	identifier    = regexp.MustCompile(`[A-Za-z]+`)
)

func init() {
	for _, w := range strings.Fields(
		`doom doomed dooms hope hoped hopes hoping fate fates crowd crowds crowded shelf shelves sequel sequels
		ailing forester foresters errand errands mourn mourns mourned mourning bury buries buried burying heir heirs choosy knot knots
		heed heeds heeded heeding untold unheard mightiest longago`) {
		banned[w] = true
	}
}

// words splits a text into its words, identifiers at their capitals.
func words(text string) []string {
	var out []string
	for _, id := range identifier.FindAllString(text, -1) {
		if id == "longAgo" {
			out = append(out, "longago")
		}
		from := 0
		for i, r := range id {
			if i > from && unicode.IsUpper(r) && (unicode.IsLower(rune(id[i-1])) || i+1 < len(id) &&
				unicode.IsLower(rune(id[i+1]))) {
				out = append(out, strings.ToLower(id[from:i]))
				from = i
			}
		}
		out = append(out, strings.ToLower(id[from:]))
	}
	return out
}

func TestWordsAreSplit(t *testing.T) {
	require.Equal(t, []string{"wait", "for", "http", "server", "s", "fate"}, words("waitForHTTPServer's fate"))
	require.Equal(t, []string{"longago", "long", "ago"}, words("longAgo"))
}

// TestInventedWords finds the banned words in code, comments, protos and documents.
func TestInventedWords(t *testing.T) {
	for _, f := range files(t, ".go", ".proto", ".md", ".sh", ".yml", ".yaml") {
		if pathIsThis(f.path) {
			continue
		}
		var found []string
		for _, w := range words(f.text) {
			if banned[w] {
				found = append(found, w)
			}
		}
		found = append(found, bannedPhrases.FindAllString(continued.ReplaceAllString(f.text, " "), -1)...)
		if len(found) > 0 {
			t.Errorf("%s contains words that docs/glossary.md replaced: %q", f.path, found)
		}
	}
}

var entry = regexp.MustCompile(`(?m)^\| \*\*([^*]+)\*\* \| (.+) \|$`)

// TestGlossary wants one entry for each word, in alphabetical order.
func TestGlossary(t *testing.T) {
	var last string
	n := 0
	for _, f := range files(t, "docs/glossary.md") {
		for _, m := range entry.FindAllStringSubmatch(f.text, -1) {
			n++
			require.Less(t, last, strings.ReplaceAll(m[1], "-", ""), "each word once, in order")
			last = strings.ReplaceAll(m[1], "-", "")
			require.Contains(t, m[2], ".", "%s has a sentence", m[1])
		}
	}
	require.Greater(t, n, 50)
}
