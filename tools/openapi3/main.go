// Command openapi3 turns the Swagger 2 document that protoc-gen-openapiv2
// writes into the OpenAPI 3 document that Quartet publishes.
//
// Usage: openapi3 IN.swagger.json OUT.openapi.json
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: openapi3 IN.swagger.json OUT.openapi.json")
		os.Exit(2)
	}
	if err := convert(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi3:", err)
		os.Exit(1)
	}
}

// convert reads Swagger 2 from in and writes OpenAPI 3 to out, indented and
// ending in a newline so that a regeneration without change gives no diff.
func convert(in, out string) error {
	raw, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	var v2 openapi2.T
	if err := json.Unmarshal(raw, &v2); err != nil {
		return fmt.Errorf("%s is not Swagger 2: %w", in, err)
	}
	v3, err := openapi2conv.ToV3(&v2)
	if err != nil {
		return fmt.Errorf("convert %s: %w", in, err)
	}
	raw, err = json.Marshal(v3)
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	if err := finish(doc); err != nil {
		return err
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}
