//go:build !race

package model

const steps = 100_000
