//go:build race

package model

// The race detector makes a step ten times as long.
const steps = 5_000
