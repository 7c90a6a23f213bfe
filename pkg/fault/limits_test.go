package fault_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

func TestX8_Names(t *testing.T) {
	for _, ok := range []string{"a", "0", "keeper-1_x", strings.Repeat("a", 128)} {
		require.NoError(t, fault.Name("agent_id", ok), ok)
	}
	for _, bad := range []string{"", "-a", "_a", "A", "a b", "ä", "a/b", "a\x00", strings.Repeat("a", 129)} {
		require.Error(t, fault.Name("agent_id", bad), bad)
	}
	err := fault.Name("agent_id", strings.Repeat("a", 129))
	require.ErrorIs(t, err, fault.LimitExceeded)
	require.Equal(t, map[string]string{"field": "agent_id", "limit": "128", "value": "129", "unit": "chars"},
		fault.From(err).Metadata())
	require.Equal(t, "agent_id", fault.From(err).Violations()[0].Field)
	// 128 characters of more bytes are not too long, but have a wrong form.
	require.ErrorIs(t, fault.Name("agent_id", strings.Repeat("ä", 128)), fault.InvalidArgument)
	err = fault.Name("agent_id", strings.Repeat("ä", 129))
	require.ErrorIs(t, err, fault.LimitExceeded)
	require.Equal(t, "129", fault.From(err).Metadata()["value"])
}

func TestX8_IDs(t *testing.T) {
	good := "wi_01h455vb4pex5vsknk084sn02q"
	require.NoError(t, fault.ID("work_item_id", good, "wi_"))
	for _, bad := range []string{
		"", "wi_", good + "0", good[:28], strings.ToUpper(good), "tsk" + good[2:],
		"wi_01h455vb4pex5vsknk084sn02u",
	} {
		require.ErrorIs(t, fault.ID("work_item_id", bad, "wi_"), fault.InvalidArgument, bad)
	}
}

func TestX8_TextCountsRunes(t *testing.T) {
	for _, limit := range []int{fault.MaxObjectiveChars, fault.MaxTodoTextChars} {
		require.NoError(t, fault.Text("f", strings.Repeat("語", limit-1), limit, true))
		require.NoError(t, fault.Text("f", strings.Repeat("語", limit), limit, true))
		require.ErrorIs(t, fault.Text("f", strings.Repeat("語", limit+1), limit, true), fault.LimitExceeded)
	}
	require.NoError(t, fault.Text("f", "", 10, false))
	require.ErrorIs(t, fault.Text("f", "", 10, true), fault.InvalidArgument)
	require.ErrorIs(t, fault.Text("f", "a\xff", 10, true), fault.InvalidArgument)
	require.ErrorIs(t, fault.Text("f", "a\x00", 10, true), fault.InvalidArgument)
}

func TestX8_Sizes(t *testing.T) {
	for _, limit := range []int{
		fault.MaxFreeTextBytes, fault.MaxMessageBytes, fault.MaxRoundTextBytes,
		fault.MaxRequestBytes,
	} {
		require.NoError(t, fault.Bytes("f", limit-1, limit))
		require.NoError(t, fault.Bytes("f", limit, limit))
		require.ErrorIs(t, fault.Bytes("f", limit+1, limit), fault.LimitExceeded)
	}
	require.NoError(t, fault.TextBytes("f", strings.Repeat("語", fault.MaxFreeTextBytes/3), fault.MaxFreeTextBytes,
		true))
	require.ErrorIs(t, fault.TextBytes("f", strings.Repeat("語", fault.MaxFreeTextBytes/3+1), fault.MaxFreeTextBytes,
		true), fault.LimitExceeded)
	require.ErrorIs(t, fault.TextBytes("f", "", 1, true), fault.InvalidArgument)
	require.NoError(t, fault.TextBytes("f", "", 1, false))
	require.NoError(t, fault.Entries("todo_list", fault.MaxTodoEntries, fault.MaxTodoEntries))
	require.ErrorIs(t, fault.Entries("todo_list", fault.MaxTodoEntries+1, fault.MaxTodoEntries), fault.LimitExceeded)
}

func TestX2_RequestID(t *testing.T) {
	require.NoError(t, fault.RequestID(""))
	require.NoError(t, fault.RequestID(strings.Repeat("r", 127)))
	require.NoError(t, fault.RequestID(strings.Repeat("r", 128)))
	err := fault.RequestID(strings.Repeat("r", 129))
	require.ErrorIs(t, err, fault.LimitExceeded)
	require.Contains(t, err.Error(), "request_id")
}

func TestOffendingValueIsClipped(t *testing.T) {
	err := fault.Invalid("f", strings.Repeat("語", 1000), "must be short")
	require.Less(t, len(err.Error()), 1000)
}
