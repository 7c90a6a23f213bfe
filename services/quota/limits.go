package quota

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"quartet/pkg/fault"
)

// The kinds of quotas.
const (
	Agents    = "agents"     // agents that are not deleted, including children
	OpenItems = "open-items" // work items that are not completed
	MiB       = "mib"        // MiB of journal lines that were written and not removed
	Requests  = "requests"   // requests per second, for each process that receives them
	// Deliveries and DeliveryKiB are the deliveries of triggers, and the KiB of their bodies, per second, for
	// each process that stores them.
	Deliveries  = "deliveries"
	DeliveryKiB = "delivery-kib"
	Streams     = "streams" // open streams, for each process
)

// Kinds are all kinds of quotas.
var Kinds = []string{Agents, OpenItems, MiB, Requests, Deliveries, DeliveryKiB, Streams}

// Limits says how much a namespace may have, in the unit of the kind; 0 is no limit.
type Limits struct {
	// Default is for every namespace, by kind.
	Default map[string]int
	// Of are the limits of single namespaces, by namespace and kind.
	Of map[string]map[string]int
}

// limit returns the limit of a namespace for a kind: its own if it has one, otherwise the default. 0 is no limit.
func (l *Limits) limit(namespace, kind string) int64 {
	if of, ok := l.Of[namespace][kind]; ok {
		return int64(of)
	}
	return int64(l.Default[kind])
}

// any reports whether some namespace has a limit of this kind.
func (l *Limits) any(kind string) bool {
	if l.Default[kind] > 0 {
		return true
	}
	for of := range maps.Values(l.Of) {
		if of[kind] > 0 {
			return true
		}
	}
	return false
}

// Parse returns the limits that the settings give: def has the default limits by kind, and single
// the limits of single namespaces, as "acme.agents": "100". It keeps def.
func Parse(def map[string]int, single map[string]string) (*Limits, error) {
	l := &Limits{Default: def, Of: map[string]map[string]int{}}
	for kind, n := range def {
		if n < 0 {
			return nil, fmt.Errorf("quota-%s is %d; it must be at least 1, or 0 for no limit", kind, n)
		}
	}
	for name, text := range single {
		namespace, kind, _ := strings.Cut(name, ".")
		n, err := strconv.Atoi(text)
		switch {
		case fault.Name("namespace", namespace) != nil || !slices.Contains(Kinds, kind):
			return nil, fmt.Errorf("namespace-quotas: %q must be a namespace, a dot and one of %s", name,
				strings.Join(Kinds, ", "))
		case err != nil || n < 0:
			return nil, fmt.Errorf("namespace-quotas: %s is %q; it must be a number, 0 for no limit", name, text)
		}
		if l.Of[namespace] == nil {
			l.Of[namespace] = map[string]int{}
		}
		l.Of[namespace][kind] = n
	}
	return l, nil
}
