package packed

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash returns the key of a record in an Index: the first eight bytes of the SHA-256 of its namespace and its id. The namespace is empty where
// ids are unique without it.
func Hash(namespace, id string) uint64 {
	sum := sha256.Sum256([]byte(namespace + "/" + id))
	return binary.LittleEndian.Uint64(sum[:])
}

// Index finds the group that has a record by the hash of the record's id. Ids may share a hash: who finds a group has to look whether it has the
// record. Nil is an empty index.
type Index[G any] map[uint64]G

// Add adds the records of a group. It returns false and adds none if a hash is taken, since of two records with one hash the second would
// not be found.
func (x Index[G]) Add(hashes []uint64, group G) bool {
	for i, h := range hashes {
		if _, taken := x[h]; taken {
			x.Remove(hashes[:i])
			return false
		}
		x[h] = group
	}
	return true
}

// Remove removes records.
func (x Index[G]) Remove(hashes []uint64) {
	for _, h := range hashes {
		delete(x, h)
	}
}
