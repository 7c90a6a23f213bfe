// Package client speaks to Quartet from Go: typed clients of the services that
// programs use, and the loops that outside programs are made of.
//
// A runner leases turns of agents and thinks (SPEC A6): [Client.RunTurns] takes
// turns, keeps their leases, cancels the work when an operator aborts it, and
// finishes each turn by the error its handler returns. A worker runs commands
// (SPEC T4): [Client.RunWorker] takes leases, sends output and ends until they
// are stored, and outlives restarts of the server. [Client.RunSteps] does the same
// for steps of boards.
//
// Every mutation that this package sends carries a request id or an index of
// its own, so it is repeated without harm while the server is away. Errors are
// faults: errors.Is(err, fault.RunStale) works as it does inside the server.
package client
