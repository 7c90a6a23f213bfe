// Package sim runs the five services under pkg/sim: clients, runners and faults by a seed, and oracles over what
// the journals hold.
package sim
