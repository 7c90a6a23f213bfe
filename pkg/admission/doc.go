// Package admission bounds what callers use of a process: how often each may do something, and how much
// of something all of them and each of them hold at a time. It knows neither callers nor calls: a key
// names whose use is counted, such as a source address, a namespace or a trigger. While processors are scarce
// it also decides whose call runs next.
package admission
