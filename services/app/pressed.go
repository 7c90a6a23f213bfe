package app

import "runtime/metrics"

// above returns a function that reports whether the live heap had more than most bytes in the last garbage
// collection.
func above(most uint64) func() bool {
	return func() bool {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64() > most
	}
}
