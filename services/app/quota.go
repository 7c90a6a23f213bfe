package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"quartet/pkg/life"
	"quartet/services/quota"
)

// autoQuota is the value of a quota setting that depends on auth: if credentials are required, the quota is that of
// sharedQuotas, otherwise there is none, because the server is one person's.
const autoQuota = -1

// sharedQuotas are the quotas of each namespace of a server with credentials, unless set. They admit the
// callers of bench, which are more than healthy tenants are.
var sharedQuotas = map[string]int{
	quota.Agents: 20_000, quota.OpenItems: 1_000_000, quota.MiB: 16_384, quota.Requests: 50_000,
	quota.Deliveries: 200, quota.DeliveryKiB: 2048, quota.Streams: 1000,
}

// sourcesOf is the limit of the deliveries of one source address, as a multiple of the default quota of a namespace:
// a sender such as a code host has few addresses for all of its customers.
const sourcesOf = 4

// quotas returns the quotas of all namespaces and of single ones. The caller must have called Complete.
func (c *Config) quotas() (*quota.Limits, error) {
	all := map[string]int{
		quota.Agents: c.QuotaAgents, quota.OpenItems: c.QuotaItems, quota.MiB: c.QuotaMiB,
		quota.Requests:   c.QuotaRequests,
		quota.Deliveries: c.QuotaDeliveries, quota.DeliveryKiB: c.QuotaDeliveryKiB, quota.Streams: c.QuotaStreams,
	}
	for kind, n := range all {
		if n != autoQuota {
			continue
		}
		all[kind] = 0
		if c.Auth == AuthRequired {
			all[kind] = sharedQuotas[kind]
		}
	}
	return quota.Parse(all, c.NamespaceQuotas)
}

// memoryPart is the part of the machine's memory that a process may use by default.
const memoryPart = 0.75

// memory returns how many bytes of memory the process may use: MaxMemory, which is in MiB, or if that is not set the
// part memoryPart of what the control group or the machine has. It is 0 if that is not known.
func (c *Config) memory() uint64 {
	if c.MaxMemory > 0 {
		return uint64(c.MaxMemory) << 20
	}
	return uint64(float64(memoryOfMachine()) * memoryPart)
}

// observePeriod is how often the live heap is reported to the gate.
const observePeriod = 250 * time.Millisecond

// observeMemory returns the module that reports the live heap to a gate. It also sets the runtime's memory limit to
// nine tenths of most, unless the operator set GOMEMLIMIT.
func observeMemory(gate *quota.Gate, most uint64) life.Service {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(most / 10 * 9))
	}
	observe := func(context.Context) { gate.Observe(liveHeap()) }
	return &life.Periodic{Label: "memory", Period: observePeriod, Do: observe}
}

// liveHeap returns how many bytes of the heap were live in the last garbage collection.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// delayPeriod is how often a gate observes how long goroutines wait for a processor.
const delayPeriod = 20 * time.Millisecond
