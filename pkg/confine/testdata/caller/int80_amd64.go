package main

// int80 makes a system call of the 32-bit ABI, with the lower half of each argument.
func int80(number uint64, args *[6]uint64) uint64
