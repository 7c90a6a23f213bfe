// Package archives finds the archives of an installation's journals: in its data directory, on its NATS servers, or in
// a bucket.
//
// Owns: the settings of the bucket, and the names, checksums and deadlines of the objects in it; that an installation
// whose archives are at one place does not begin others at another; for how long events are kept that nothing needs any
// more; reading a journal across archive and log for those who look for damage, which goes on behind what is damaged.
// Never does: create a bucket, remove anything that a catalog names, or write frames.
package archives
