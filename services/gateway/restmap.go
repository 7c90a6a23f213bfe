package gateway

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	protofiles "quartet/proto"
)

// restRule is one line of the map.
type restRule struct {
	HTTPMethod string
	Pattern    string // such as /v1/agents/{agent_id}
	RPC        protoreflect.MethodDescriptor
	Body       bool // the request is the body; otherwise it is the query string of a GET or DELETE
}

// restRules returns the lines of the map in their order. It fails if the map names an RPC that this binary does not
// know.
func restRules() ([]restRule, error) {
	var file struct {
		HTTP struct {
			Rules []struct {
				Selector                      string
				Get, Put, Post, Delete, Patch string
				Body                          string
			}
		}
	}
	if err := yaml.Unmarshal(protofiles.RESTMap, &file); err != nil {
		return nil, fmt.Errorf("the REST map: %w", err)
	}
	rules := make([]restRule, 0, len(file.HTTP.Rules))
	for _, line := range file.HTTP.Rules {
		rule := restRule{Body: line.Body != ""}
		for m, p := range map[string]string{
			http.MethodGet: line.Get, http.MethodPut: line.Put, http.MethodPost: line.Post,
			http.MethodDelete: line.Delete, http.MethodPatch: line.Patch,
		} {
			if p != "" {
				rule.HTTPMethod, rule.Pattern = m, p
			}
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(line.Selector))
		if err != nil {
			return nil, fmt.Errorf("the REST map names %s: %w", line.Selector, err)
		}
		md, ok := d.(protoreflect.MethodDescriptor)
		if !ok {
			return nil, fmt.Errorf("the REST map names %s, which is no RPC", line.Selector)
		}
		rule.RPC = md
		rules = append(rules, rule)
	}
	return rules, nil
}

// maxNamed is the most methods of which pathsNamed returns the paths. No message of Quartet names more.
const maxNamed = 4

// compound matches a word of two parts at least, as the names of methods are. It does not match Explain, which is
// also an ordinary word.
var compound = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z][A-Za-z]+\b`)

// paths has the HTTP method and path of each RPC, by the RPC's name. No two RPCs have the same name, except Connect.
var paths = sync.OnceValue(func() map[string]string {
	rules, err := restRules()
	if err != nil {
		return nil // the gateway does not start
	}
	byName := make(map[string]string, len(rules))
	for _, r := range rules {
		byName[string(r.RPC.Name())] = r.HTTPMethod + " " + r.Pattern
	}
	return byName
})

// pathsNamed returns the HTTP method and path of each method that a message names, by its name, such as "POST
// /v1/agents" by SpawnAgent; nil if there is none. What is between double quotes is the caller's own text and names
// nothing.
func pathsNamed(message string) map[string]string {
	var named map[string]string
	for i, part := range strings.Split(message, `"`) {
		if i%2 == 1 {
			continue
		}
		for _, name := range compound.FindAllString(part, -1) {
			path, ok := paths()[name]
			switch {
			case !ok:
			case named == nil:
				named = map[string]string{name: path}
			case len(named) < maxNamed:
				named[name] = path
			}
		}
	}
	return named
}
