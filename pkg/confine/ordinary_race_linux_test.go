//go:build race

package confine_test

// protectOrdinary does nothing: TestOrdinaryUser does not exist with the race detector.
func protectOrdinary() error { return nil }
