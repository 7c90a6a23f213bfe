package quota

import (
	"cmp"
	"context"
	"slices"
	"time"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// usageTerm is how long Usage may read the journals.
const usageTerm = 20 * time.Second

// counted are the kinds that are counted from the journals, so that every process knows their use.
var counted = []string{Agents, OpenItems, MiB}

// Usage returns the quotas of a namespace in the order of Kinds, and how much of those in counted it uses. The
// first call begins to follow the journals that the gate does not follow yet. Usage returns NOT_READY if reading
// the journals to their ends takes longer than usageTerm; the gate then continues to read them.
func (g *Gate) Usage(ctx context.Context, namespace string) ([]*identityv1.QuotaUse, error) {
	if err := g.count(ctx); err != nil {
		return nil, err
	}
	var out []*identityv1.QuotaUse
	for _, kind := range Kinds {
		use := &identityv1.QuotaUse{Kind: kind, Limit: g.cfg.Limits.limit(namespace, kind)}
		switch kind {
		case Agents, OpenItems:
			n := g.counts.get(namespace, kind)
			use.Value = &n
		case MiB:
			n := (g.counts.get(namespace, kind) + 1<<20 - 1) >> 20
			use.Value = &n
		}
		out = append(out, use)
	}
	return out, nil
}

// count waits until the journals of the kinds in counted are read to their ends. It returns NOT_READY as Usage does.
func (g *Gate) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usageTerm)
	defer cancel()
	if err := g.counts.start(ctx, g.cfg.Sources, counted); err != nil {
		return fault.NotReady.New(
			"the journals are being read to count what namespaces hold; repeat the call in a moment").WithCause(err)
	}
	return nil
}

// maxLargest is how many namespaces Largest returns at most.
const maxLargest = 100

// Largest returns the at most maxLargest namespaces of which the journals hold the most bytes, in descending order,
// and how many namespaces there are in all. It reads the journals as Usage does, and returns NOT_READY as Usage
// does.
func (g *Gate) Largest(ctx context.Context) ([]*identityv1.NamespaceUse, int, error) {
	if err := g.count(ctx); err != nil {
		return nil, 0, err
	}
	all := g.counts.all()
	n := len(all)
	slices.SortFunc(all, func(a, b *identityv1.NamespaceUse) int {
		return cmp.Or(cmp.Compare(b.GetBytes(), a.GetBytes()), cmp.Compare(a.GetNamespace(), b.GetNamespace()))
	})
	return all[:min(n, maxLargest)], n, nil
}
