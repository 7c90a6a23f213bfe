package app

import (
	"fmt"
	"strconv"
	"time"

	"quartet/services/agent"
)

// weightsOf returns the setting namespace-weights, by namespace.
func weightsOf(setting map[string]string) (map[string]int, error) {
	out := map[string]int{}
	for namespace, text := range setting {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > agent.MaxWeight {
			return nil, fmt.Errorf("namespace-weights: the weight of %q is %q; it must be a number from 1 to %d",
				namespace, text, agent.MaxWeight)
		}
		out[namespace] = n
	}
	return out, nil
}

// rechecksOf returns the setting namespace-rechecks, by namespace.
func rechecksOf(setting map[string]string) (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	for namespace, text := range setting {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil,
				fmt.Errorf("namespace-rechecks: the value for %q is %q; it must be a duration such as 30m, or 0",
					namespace, text)
		}
		out[namespace] = d
	}
	return out, nil
}
