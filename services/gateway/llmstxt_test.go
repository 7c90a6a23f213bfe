package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/deploy/openapi"
)

// The summary is that of the repository's llms.txt.
func TestTheHeadIsTheRepositorys(t *testing.T) {
	raw, err := os.ReadFile("../../llms.txt")
	require.NoError(t, err)
	own, _, ok := strings.Cut(string(raw), "\n## ")
	require.True(t, ok)
	require.Equal(t, strings.TrimSpace(own), strings.TrimSpace(llmsHead), "copy what is above the first section of "+
		"llms.txt to services/gateway/llms_head.md")
}

// A part that the process lacks is not named, and the page is small enough for any context.
func TestThePageNamesThePartsThereAre(t *testing.T) {
	all := llmsText(llmsParts{MCP: true, Console: true})
	require.Less(t, len(all), 8<<10)
	require.True(t, strings.HasPrefix(all, "# Quartet\n"))
	for _, path := range []string{"/openapi.json", "/v1/agents", "/mcp/AGENT", "(/ui)", "/version"} {
		require.Contains(t, all, path)
	}
	require.NotContains(t, llmsText(llmsParts{}), "/mcp/")
	require.NotContains(t, llmsText(llmsParts{MCP: true}), "/ui")
	require.NotContains(t, all, "](docs/", "a link to a file that a server does not have")
}

// A client that has the page gets 304 without it; HEAD has no body.
func TestThePageIsAskedForByItsETag(t *testing.T) {
	h := llmsHandler(llmsParts{})
	ask := func(method, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "/llms.txt", nil)
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	first := ask(http.MethodGet, "")
	require.Equal(t, http.StatusOK, first.Code)
	require.Equal(t, llmsText(llmsParts{}), first.Body.String())
	require.Equal(t, "text/plain; charset=utf-8", first.Header().Get("Content-Type"))
	tag := first.Header().Get("ETag")
	require.Regexp(t, `^"[0-9a-f]{32}"$`, tag)
	again := ask(http.MethodGet, tag)
	require.Equal(t, http.StatusNotModified, again.Code)
	require.Empty(t, again.Body.String())
	require.Equal(t, http.StatusOK, ask(http.MethodGet, `"other"`).Code)
	require.Empty(t, ask(http.MethodHead, "").Body.String())
	w := httptest.NewRecorder()
	llmsHandler(llmsParts{MCP: true}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/llms.txt",
		nil))
	require.NotEqual(t, tag, w.Header().Get("ETag"), "another text has another tag")
}

// What the page says of a runner's paths and fields is in the OpenAPI document.
func TestTheRunnersCallsAreThoseOfTheAPI(t *testing.T) {
	_, section, ok := strings.Cut(llmsText(llmsParts{}), "## A runner of your own\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	var api struct {
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}
	require.NoError(t, json.Unmarshal(openapi.JSON, &api))
	parameter := regexp.MustCompile(`\{(\w+)_id\}`)
	calls := regexp.MustCompile(`(GET|POST) (/v1/[^ \n]+)`).FindAllStringSubmatch(section, -1)
	require.Len(t, calls, 6)
	for _, call := range calls {
		path := parameter.ReplaceAllString(call[2], "{${1}Id}")
		require.Contains(t, api.Paths[path], strings.ToLower(call[1]), path)
	}
	fields := map[string]bool{}
	for _, schema := range api.Components.Schemas {
		for name := range schema.Properties {
			fields[name] = true
		}
	}
	named := regexp.MustCompile(`"([a-z]\w+)"|\b([a-z]+(?:[A-Z]\w*)+)\b`).FindAllStringSubmatch(section, -1)
	require.Greater(t, len(named), 12)
	for _, name := range named {
		require.True(t, fields[name[1]+name[2]], name[0])
	}
}
