package id

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestW11_ARunNamesItsTurn(t *testing.T) {
	turn := New().New("trn_")
	require.Equal(t, turn, TurnOf(RunOf(turn)))
	require.NotEqual(t, turn, RunOf(turn))
	require.Empty(t, TurnOf(""))
	require.Empty(t, TurnOf("wi_00000000000000000000000001"))
}
