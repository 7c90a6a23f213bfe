// Package openapi holds the generated description of the REST API, so that the
// binary can serve it.
package openapi

import _ "embed"

// JSON is quartet.openapi.json, OpenAPI 3.
//
//go:embed quartet.openapi.json
var JSON []byte
