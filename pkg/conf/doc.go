// Package conf reads settings: a flag overrides the environment, which overrides the file,
// which overrides the default.
//
// Each component declares its own settings on a Set, with default and help. Describe returns
// them for the generated reference, so that it agrees with the code.
//
// The setting "http-addr" is the flag --http-addr, the variable
// QUARTET_HTTP_ADDR and the key http-addr of the YAML (or JSON) file, where
// nested maps join with a dash: {http: {addr: ...}} is the same setting. A
// secret may also come from a file named by QUARTET_<NAME>_FILE, and is never shown.
package conf
