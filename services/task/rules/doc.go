// Package rules decides what commands of the task plane write: it is the pure
// functions from the state, a request, the time and a source of ids to events or a
// refusal, and the validation of requests.
package rules
