// Package tests holds the tests of the whole: real binaries, killed and frozen
// at random moments under load, and books that must agree afterwards.
package tests
