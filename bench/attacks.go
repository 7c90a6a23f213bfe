package main

// The names of the figures about attackers, which are measured only on Linux.
const (
	nameQuiet    = "updates of a tenant of a quiet server"
	nameAttacked = "updates of a tenant beside a hostile one"
	nameHostile  = "a hostile tenant with every role but admin"
	nameStranger = "an attacker without a credential"
)
