package event

// Tombstones is the part of a state that knows which owners were erased, so that the state can refuse new owners with
// their names. A state embeds it.
type Tombstones struct{ set *ErasedSet }

// UseErased implements journal.Erasable. The journal calls it once, while the state is empty, with a set that only
// the journal changes.
func (t *Tombstones) UseErased(erased *ErasedSet) { t.set = erased }

// WasErased reports whether an owner was erased.
func (t *Tombstones) WasErased(namespace, id string) bool { return t.set.Has(namespace, id) }
