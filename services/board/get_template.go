package board

import (
	"context"
	_ "embed"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
)

// template is the guide to writing a board.
//
//go:embed template.md
var template string

// GetTemplate returns the guide to writing a board (S2-296 to S2-302). It reads no
// board and writes nothing.
func (s *Service) GetTemplate(ctx context.Context, _ *boardv1.GetTemplateRequest) (*boardv1.GetTemplateResponse,
	error,
) {
	a := rpc.ActorFrom(ctx)
	session := a.AgentID
	if session == "" {
		session = "none"
	}
	if err := s.operate(ctx, "board_template", session); err != nil {
		return nil, err
	}
	return &boardv1.GetTemplateResponse{Name: "task_template", Role: "user", Text: template}, nil
}
