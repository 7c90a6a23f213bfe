// Package sim runs the five services under the queue of tests/sim/engine: clients, runners and faults by a seed, and
// oracles over what was answered and what the journals hold.
package sim
