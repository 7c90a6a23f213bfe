// Command program32 is built for a 32-bit architecture.
package main

func main() { println("reached") }
