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

// counted are the kinds whose use is the same at every process.
var counted = []string{Agents, OpenItems, MiB}

// Usage returns the quotas of a namespace in the order of Kinds, and how much of those in counted it uses. The first
// call begins to read the journals that the gate does not follow yet, to their ends; it returns NOT_READY if that
// takes longer than usageTerm, and goes on reading.
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

// count reads the journals to their ends, as Usage says.
func (g *Gate) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usageTerm)
	defer cancel()
	if err := g.counts.start(ctx, g.cfg.Sources, counted); err != nil {
		return fault.NotReady.New("the journals are being read to count what namespaces hold; repeat the call in a moment").WithCause(err)
	}
	return nil
}

// maxLargest is how many namespaces Largest returns at most.
const maxLargest = 100

// Largest returns the namespaces that have written most, first whoever has written most, and how many namespaces there are. It reads the
// journals as Usage does.
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
