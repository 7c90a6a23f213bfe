package archives

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
)

// The bounds of a number of days.
const (
	minDays = 2
	maxDays = 3650
)

// ParseHistory returns the settings history-days, which is for all namespaces, and namespace-history-days, as "acme":
// "90". A day has 24 hours, or day if that is not 0.
func ParseHistory(days int, single map[string]string, day time.Duration) (plane.History, error) {
	day = cmp.Or(day, 24*time.Hour)
	h := plane.History{Default: time.Duration(days) * day, Namespaces: map[string]time.Duration{}}
	if !valid(days) {
		return h, fmt.Errorf("history-days is %d; it must be from %d to %d, or 0 to keep all events", days, minDays,
			maxDays)
	}
	for namespace, text := range single {
		n, err := strconv.Atoi(text)
		switch {
		case fault.Name("namespace", namespace) != nil:
			return h, fmt.Errorf("namespace-history-days: %q must be a namespace", namespace)
		case err != nil || !valid(n):
			return h, fmt.Errorf("namespace-history-days: the value for %q is %q; it must be a number from %d to %d, "+
				"or 0 to keep all events", namespace, text, minDays, maxDays)
		}
		h.Namespaces[namespace] = time.Duration(n) * day
	}
	return h, nil
}

func valid(days int) bool { return days == 0 || minDays <= days && days <= maxDays }
