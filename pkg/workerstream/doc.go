// Package workerstream holds the streams by which workers are connected to a
// plane: one bidirectional stream for each worker, over which it is given work
// and reports on it. It knows no plane; messages are type parameters.
//
// A worker connects, says hello, and gets the stream's header once the plane has
// reconciled what the worker still holds. From then on both sides send at any
// time:
//
//	worker                              plane
//	hello{id, boot, capacity, ...}  -->  Hello.Check, Registry.Serve: join
//	                                     Handler.Welcome
//	                           <-- header
//	reports, heartbeats        -->       Handler.Receive, in order
//	                           <--       Session.Send, never blocks
//
// A worker has one stream: when it connects again, the older stream ends. The
// Registry also counts the assignments of each worker and the room that is
// reserved on it, so that planes can choose workers by their free room.
package workerstream
