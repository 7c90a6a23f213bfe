package packed

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash returns a number for a record, by which an index finds the group that has it: the first eight bytes of the
// SHA-256 of its namespace and its id. The namespace is empty where ids are unique without it. Records may share a
// hash: who finds a group has to look whether it has the record.
func Hash(namespace, id string) uint64 {
	sum := sha256.Sum256([]byte(namespace + "/" + id))
	return binary.LittleEndian.Uint64(sum[:])
}
