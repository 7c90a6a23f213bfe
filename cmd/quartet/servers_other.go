//go:build !unix

package main

import "quartet/services/cli"

// servers returns only the clients and tools, because servers and workers need a Unix system.
func servers() cli.Servers {
	s := clients()
	s.ClientsOnly = true
	return s
}
