// Package patch validates and decides the operations of UpdateBoard, and validates the
// steps of CreateBoard.
//
// It is pure. The operations are applied to a draft of the board, so that either all
// of them are accepted or none (SPEC B4).
package patch
