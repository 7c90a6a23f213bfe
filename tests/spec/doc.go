// Package spec tests the specification in docs/spec: every id that the code
// cites is a row there, every row names a test that exists, and public documents
// carry no ids. It also holds tests of requirements that no plane's own tests cover.
package spec
