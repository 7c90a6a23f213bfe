// Package admission bounds what callers use of a process: how often each may do something (Rates), and how
// much of something each of them and all of them together hold at a time (Held). It knows neither callers nor
// calls: use is counted by a key, such as a source address, a namespace or a trigger. While the process is short
// of processor time, it also decides whose call runs next (Turns).
package admission
