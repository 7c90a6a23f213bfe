//go:build nomodels

package runner

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A build without the SDKs says so, before anything is asked of an agent.
func TestC6_WithoutProviders(t *testing.T) {
	for _, kind := range []string{Anthropic, OpenAI} {
		_, err := New(Config{Provider: kind, Model: "any", Key: "any"}, nil)
		require.ErrorContains(t, err, "-tags nomodels", kind)
	}
}
