//go:build !race

package sim

// race reports whether the race detector is compiled in.
const race = false
