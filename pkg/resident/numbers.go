package resident

// Numbers are short names of keys, for entries of an Index. A number stays the same while its key is evicted, and is
// used again after it was given back. The zero Numbers have none.
type Numbers[K comparable] struct {
	keys   []K // by number
	unused []uint32
}

// Take returns a number for a key, which no other key has now.
func (n *Numbers[K]) Take(k K) uint32 {
	if last := len(n.unused) - 1; last >= 0 {
		number := n.unused[last]
		n.unused = n.unused[:last]
		n.keys[number] = k
		return number
	}
	n.keys = append(n.keys, k)
	return uint32(len(n.keys) - 1)
}

// Len returns how many keys have a number.
func (n *Numbers[K]) Len() int { return len(n.keys) - len(n.unused) }

// End returns the number that follows the largest one that was ever taken.
func (n *Numbers[K]) End() int { return len(n.keys) }

// Key returns the key of a number below End, the zero K for one that was given back.
func (n *Numbers[K]) Key(number uint32) K { return n.keys[number] }

// Give gives back a number that is not used any more.
func (n *Numbers[K]) Give(number uint32) {
	var none K
	n.keys[number] = none
	n.unused = append(n.unused, number)
}
