package repair

import (
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
)

// onWire returns a header as it is in a message.
func onWire(h nats.Header) []byte {
	out := []byte("NATS/1.0\r\n")
	for _, key := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[key] {
			out = append(out, key+": "+value+"\r\n"...)
		}
	}
	return append(out, "\r\n"...)
}
