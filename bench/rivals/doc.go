// Command rivals measures alternatives to Quartet: River on PostgreSQL and asynq on Redis, both
// with each acknowledged write on disk. It starts both servers on loopback in a temporary
// directory. For each line on standard input it measures one slice, and writes the result as a line of JSON:
//
//	{"figure": "river_insert", "callers": 256, "span": "500ms"}
//
// It is a separate module, so that its dependencies are not Quartet's. It needs the programs of
// postgresql and redis-server (Debian: apt install postgresql redis-server).
package main
