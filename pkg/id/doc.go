// Package id makes the identifiers of SPEC X8: a prefix that says what the
// record is ("wi_") and 26 characters of lower-case Crockford base 32.
//
// Handlers take a Source so that rules stay pure and tests see the same ids on
// every run. Records whose creation may be retried between planes get a
// Derived id instead: the same request always names the same record.
package id
