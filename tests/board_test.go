package tests

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/board/wal"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// TestB1_AWALAsAFile makes a board over REST, takes its WAL as a file, follows
// it to the board's end, and replays it without the server; a restart in
// between changes no byte of it.
func TestB1_AWALAsAFile(t *testing.T) {
	s := dev.Start(t)
	call := func(method, path, body string, want int) string {
		req := must.Value(http.NewRequestWithContext(dev.Within(t), method, s.URL()+"/v1/sessions/keeper/"+path,
			strings.NewReader(body)))(t)
		resp := must.Value(proc.HTTP.Do(req))(t)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		out := must.Value(io.ReadAll(resp.Body))(t)
		require.Equal(t, want, resp.StatusCode, string(out))
		return string(out)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	call(http.MethodPost, "boards",
		`{"boardId":"one","walName":"first","title":"One","steps":[{"stepId":"a","title":"A"},{"stepId":"b","title":"B","dependsOnStepIds":["a"]}]}`, 200)
	call(http.MethodPatch, "boards/one/steps/a", `{"status":"STEP_STATUS_COMPLETED","resultSummary":"fine"}`, 200)
	before := call(http.MethodGet, "wal/first.wal.jsonl", "", 200)
	replayed := must.Value(wal.Replay(strings.NewReader(before)))(t)
	require.EqualValues(t, 5, replayed.Lines)
	require.Equal(t, "fine", replayed.Board.GetSteps()[0].GetResultSummary())
	http.DefaultClient.CloseIdleConnections()
	s.Down()
	s.Up()
	require.Equal(t, before, call(http.MethodGet, "wal/first.wal.jsonl", "", 200))
	followed := make(chan string, 1)
	ctx := dev.Within(t)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet,
			s.URL()+"/v1/sessions/keeper/wal/first.wal.jsonl?follow=true", nil)
		if err != nil {
			followed <- err.Error()
			return
		}
		resp, err := proc.HTTP.Do(req)
		if err != nil {
			followed <- err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		out, _ := io.ReadAll(resp.Body) // cut short, it is not equal below
		followed <- string(out)
	}()
	call(http.MethodPost, "boards/one:cancel", `{"reason":"enough"}`, 200)
	all := <-followed
	require.True(t, strings.HasPrefix(all, before))
	require.Equal(t, call(http.MethodGet, "wal/first.wal.jsonl", "", 200), all)
	require.Equal(t, all[len(before):], call(http.MethodGet, "wal/first.wal.jsonl?after_wal_seq=5", "", 200))
	replayed = must.Value(wal.Replay(bytes.NewReader([]byte(all))))(t)
	require.Equal(t, "enough", replayed.Board.GetReason())
	require.Contains(t, call(http.MethodGet, "wal/none.wal.jsonl", "", 404), "NOT_FOUND")
	require.Contains(t, call(http.MethodGet, "wal/first.wal.jsonl?colour=red", "", 400), "UNKNOWN_FIELD")
	require.Contains(t, call(http.MethodGet, "wal/first.txt", "", 404), "NOT_FOUND")
}
