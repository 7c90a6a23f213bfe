// Package contexts takes turns from a whole server, and looks at what their contexts show: why
// the turn is, what it is about, what was said and what was tried.
package contexts
