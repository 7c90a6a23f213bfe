// Package planes runs the five services in one process, as the server runs them, over journals
// in memory and on a clock that the test moves. Services can be stopped and started anew over
// what their journals hold, what one service follows of another can be held back, and a test
// can wait until nothing goes on any more.
package planes
