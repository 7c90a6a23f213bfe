//go:build !linux

package main

import "context"

// measureAttacks reports that nothing is measured, because what a process uses is read from /proc of Linux.
func measureAttacks(_ context.Context, o options, say func(row)) error {
	for _, name := range []string{nameHostile, nameStranger} {
		if o.wants(name) {
			say(row{name: name, note: "not measured: it needs Linux"})
		}
	}
	return nil
}
