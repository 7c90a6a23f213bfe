// Package summary renders the boards of a session as Markdown for a prompt, within a
// budget (SPEC B14). It is pure.
package summary
