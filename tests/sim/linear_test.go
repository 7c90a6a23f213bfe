package sim

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// registerOp is one operation of a client on the objective of an item, between two steps of the run.
type registerOp struct {
	item       string
	write      bool
	value      string
	call, back int
}

// register is the sequential specification of an objective: a read returns what was written last.
var register = porcupine.Model{
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		at := map[string]int{}
		for _, op := range all {
			item := op.Input.(registerOp).item //nolint:forcetypeassert // all are
			n, ok := at[item]
			if !ok {
				n = len(parts)
				at[item] = n
				parts = append(parts, nil)
			}
			parts[n] = append(parts[n], op)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		op := input.(registerOp) //nolint:forcetypeassert // all are
		if op.write {
			return true, op.value
		}
		return state == op.value, state
	},
}

// linearizable reports whether the histories of all objectives are (SPEC X1: an answered write is seen by every later
// read).
func (k *known) linearizable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []porcupine.Operation
	for i, op := range k.ops {
		all = append(all, porcupine.Operation{ClientId: i, Input: op, Call: int64(op.call), Return: int64(op.back)})
	}
	return porcupine.CheckOperationsTimeout(register, all, time.Minute) != porcupine.Illegal
}
