// Package audit keeps the audit log: who did what, from where, with which key (SPEC I16).
//
// Owns: the entries and their hash chain, which calls are recorded, and the Recorder that records
// them in every process.
// Never does: record what is in requests beside ids and names, or decide who may do what.
// Emits: audit_recorded, one for each entry, which is published on the bus as a CloudEvent too.
package audit
