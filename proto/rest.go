// Package protofiles embeds the part of the API's definition that a running gateway
// needs: the REST map. The .proto files beside it are compiled into pkg/pb.
package protofiles

import _ "embed"

// RESTMap is gateway.yaml: which HTTP method and path call which RPC, in the form of
// google.api.Service.
//
//go:embed gateway.yaml
var RESTMap []byte
