// Package top has `quartet top`: the agents on the screen of a terminal, live, and one of them in detail.
//
// Owns: the screen of the terminal while it runs, and what keys do.
// Never does: change anything, or read more than a bounded number of agents.
// Reads: ListAgents, CountAgents, SearchAgents, GetWorkQueue, Explain, ListTasks and WatchEvents of the public API;
// keys. Emits: text.
package top
