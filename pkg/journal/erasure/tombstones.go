package erasure

// Tombstones is the part of a state that remembers who was erased, so that no name is used again. A state embeds it.
type Tombstones struct{ set *Set }

// UseErased implements journal.Erasable.
func (t *Tombstones) UseErased(erased *Set) { t.set = erased }

// WasErased reports whether an owner was erased.
func (t *Tombstones) WasErased(namespace, id string) bool { return t.set.Has(namespace, id) }
