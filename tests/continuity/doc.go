// Package continuity follows an agent through days of its life: questions and answers, work
// items that take turns, results that arrive while it does something else, crashes between.
// The actor in each scenario knows nothing but what the runtime tells it: the text of its
// turn's context and the results of its calls. A scenario fails if that does not suffice to do
// the right thing.
//
// Each scenario runs undisturbed, and then again with one of these in its course:
//
//   - runner: the runner is lost at one of its steps, and its lease expires;
//   - server: all planes end after one of the frames that they store, and are started anew;
//   - both: the runner is lost with the server;
//   - machine: the server ends with the worker that it embeds, and so with its commands.
//
// The services are those of the server, in one process, over journals in memory and a clock that
// the test moves; commands are real processes of a real worker. After each run no call that the
// server executes has taken effect twice, and calls of the runner's own that were cut off have been
// called unknown.
//
// The flag -kills says how many kills of each kind are tried for each scenario, -1 for all, and
// -seed which ones.
package continuity
