//go:build !amd64

package main

func int80(uint64, *[6]uint64) uint64 { panic("this machine has no such ABI") }
