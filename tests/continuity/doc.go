// Package continuity follows an agent through days of its life: questions and answers, work
// items that take turns, results that arrive while it does something else, crashes between.
// The actor in each scenario knows nothing but what the runtime tells it: the text of its
// turn's context and the results of its calls. A scenario fails if that does not suffice to do
// the right thing.
package continuity
