// Package conf reads settings: flag over environment over file over default.
//
// Each component declares its own settings, with default and help, on a Set;
// nothing is declared anywhere else. Describe gives the same rows to the
// generated reference, so the documents cannot drift from the code.
//
// The setting "http-addr" is the flag --http-addr, the variable
// QUARTET_HTTP_ADDR and the key http-addr of the YAML (or JSON) file, where
// nested maps join with a dash: {http: {addr: ...}} is the same setting. A
// secret may also come from a file named by QUARTET_<NAME>_FILE, and is never
// shown.
package conf
