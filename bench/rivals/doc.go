// Command rivals measures what one would use instead of Quartet: River on
// PostgreSQL and asynq on Redis, both with every acknowledged write on disk. It
// starts both servers on loopback in a directory of its own and measures one
// turn for each line on standard input, so that the benchmark can take turns:
//
//	{"figure": "river_insert", "callers": 256, "span": "500ms"}
//
// It is a module of its own: none of this is a dependency of Quartet. Needs the
// programs of postgresql and redis-server (Debian: apt install postgresql redis-server).
package main
