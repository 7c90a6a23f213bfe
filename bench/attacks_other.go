//go:build !linux

package main

import "context"

// measureAttacks says that nothing is measured: what a process uses is read from /proc.
func measureAttacks(_ context.Context, o options, say func(row)) error {
	for _, name := range []string{nameHostile, nameStranger} {
		if o.wants(name) {
			say(row{name: name, note: "not measured: it needs Linux"})
		}
	}
	return nil
}
