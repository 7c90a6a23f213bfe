package quota

import (
	"context"
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
	ctx, cancel := context.WithTimeout(ctx, usageTerm)
	defer cancel()
	if err := g.counts.start(ctx, g.cfg.Sources, counted); err != nil {
		return nil, fault.NotReady.New("the journals are being read to count what namespaces hold; repeat the call in a moment").WithCause(err)
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
