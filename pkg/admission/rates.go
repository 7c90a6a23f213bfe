package admission

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxKeys is how many keys a Rates remembers. When a new key would exceed it, the Rates forgets the keys whose
// whole burst is available again, but at most once per second.
const maxKeys = 4096

// Rates limits how often something may be done, with a separate limit of the same rate for each key.
// While maxKeys keys are remembered, all other keys share one limit. It is safe for concurrent use.
// A nil Rates limits nothing.
type Rates[K comparable] struct {
	limit rate.Limit
	burst int

	mu    sync.Mutex
	keys  map[K]*rate.Limiter
	swept time.Time // when keys with a full burst were last forgotten
}

// NewRates returns a Rates that admits burst at once and perSecond after that, for each key.
func NewRates[K comparable](perSecond float64, burst int) *Rates[K] {
	return &Rates[K]{limit: rate.Limit(perSecond), burst: burst, keys: map[K]*rate.Limiter{}}
}

// Take consumes n of what is available to a key and returns 0. If less than n is available, it consumes
// nothing and returns the time after which n will be available. It treats an n above the burst as the burst.
func (r *Rates[K]) Take(key K, n int) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	reserved := r.of(key).ReserveN(now, min(n, r.burst))
	wait := reserved.DelayFrom(now)
	if wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}

// Wait returns what Take would return, and consumes nothing.
func (r *Rates[K]) Wait(key K, n int) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	reserved := r.of(key).ReserveN(now, min(n, r.burst))
	defer reserved.CancelAt(now) // at now: a reservation whose time has passed cannot be cancelled
	return reserved.DelayFrom(now)
}

// of returns the limiter of a key. If the key is new and maxKeys keys are remembered, that is the limiter of the zero
// key, which all such keys share. The caller holds mu.
func (r *Rates[K]) of(key K) *rate.Limiter {
	if l := r.keys[key]; l != nil {
		return l
	}
	if now := time.Now(); len(r.keys) >= maxKeys && now.Sub(r.swept) >= time.Second {
		r.swept = now
		for k, l := range r.keys {
			if l.Tokens() >= float64(r.burst) {
				delete(r.keys, k)
			}
		}
	}
	if len(r.keys) >= maxKeys {
		var shared K
		key = shared
	}
	l := r.keys[key]
	if l == nil {
		l = rate.NewLimiter(r.limit, r.burst)
		r.keys[key] = l
	}
	return l
}
