package rules

import (
	"cmp"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// DecideCreate returns the first events of a board: its creation, the steps that are
// ready at once, and that it is running.
func DecideCreate(k model.BoardKey, req *boardv1.CreateBoardRequest, agentID, runID string) []*journal.Event {
	b := model.NewBoard(k, req.GetBoardId())
	first := b.NewEvent("", &boardv1.TaskCreated{
		WalName: req.GetWalName(), Title: req.GetTitle(), Summary: req.GetSummary(), Steps: req.GetSteps(),
		DefaultWorkerPoolId: cmp.Or(req.GetDefaultWorkerPoolId(), model.DefaultPool),
		CreatedByAgentId:    agentID, CreatedByRunId: runID,
	})
	events := []*journal.Event{first}
	for _, in := range req.GetSteps() {
		if len(in.GetDependsOnStepIds()) == 0 {
			events = append(events, b.NewEvent(in.GetStepId(), &boardv1.TaskStepReady{}))
		}
	}
	return append(events, b.NewEvent("", &boardv1.TaskRunning{}))
}
