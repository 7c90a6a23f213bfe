// Package cluster runs Quartet as a deployment does, three NATS servers and two instances of each service, each on a
// host of its own: a network namespace on a bridge, inside a user namespace that the test makes for itself, so that it
// needs no rights and nothing of it stays. Faults are put into the network, the processes and the disks while callers
// keep books of what they were answered.
package cluster
