// Package id generates the identifiers of SPEC X8: a prefix for the type of the record ("wi_")
// and 26 characters of lower-case Crockford base 32.
//
// Handlers take a Source, so that rules stay pure and tests get the same ids on each run.
// Records whose creation may be repeated between planes have a Derived id instead, so that a
// repeated request names the same record.
package id
