// Package id generates the ids of records: a prefix for the type of the record ("wi_") and
// 26 characters of lower-case Crockford base 32 (SPEC X8).
//
// Handlers have a Source, so that rules stay pure and tests get the same ids on each run.
// A record that one plane creates in another, by a request that may be repeated, has a Derived id
// instead, so that a repeated request names the same record.
package id
