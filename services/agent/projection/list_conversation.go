package projection

import (
	"context"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// maxSearched is how many utterances one call of ListConversation reads.
const maxSearched = 1000

// ListConversation reads back what was said, newest first (SPEC C7.4).
func (s *Service) ListConversation(ctx context.Context, req *agentv1.ListConversationRequest) (
	*agentv1.ListConversationResponse, error,
) {
	if err := fault.First(
		fault.Text("contains", req.GetContains(), 256, false),
		checkTime("since", req.GetSince()), checkTime("until", req.GetUntil()),
	); err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(req.GetContains()))
	items := map[uint64]string{} // by wal_seq
	list := access.Newest[*state.State, *agentv1.Utterance]{
		Kind: "conversation", MaxBytes: page.MaxBytes / 2, MaxRead: maxSearched,
		Entries: func(st *state.State) (iter.Seq2[int, []uint64], error) {
			a, err := st.Find(rpc.ActorFrom(ctx).Namespace, req.GetAgentId())
			if err != nil {
				return nil, err
			}
			return func(yield func(int, []uint64) bool) {
				for n, p := range a.Conversation.Places(req.GetWorkItemId()) {
					items[p.At] = p.ItemID
					if !yield(n, []uint64{p.At}) {
						return
					}
				}
			}, nil
		},
		Read: func(events []*journal.Event) (*agentv1.Utterance, error) {
			u, err := utteranceOf(events[0])
			if err == nil {
				u.WorkItemId = items[events[0].WalSeq]
			}
			return u, err
		},
	}
	if len(words) > 0 || req.GetSince() != nil || req.GetUntil() != nil {
		list.Keep = func(u *agentv1.Utterance) bool {
			at := u.GetCreatedAt().AsTime()
			if req.GetSince() != nil && at.Before(req.GetSince().AsTime()) || req.GetUntil() != nil &&
				!at.Before(req.GetUntil().AsTime()) {
				return false
			}
			text := strings.ToLower(u.GetText())
			for _, w := range words {
				if !strings.Contains(text, w) {
					return false
				}
			}
			return true
		}
	}
	found, next, removed, err := list.Page(ctx, s.engine, req)
	if err != nil {
		return nil, err
	}
	return &agentv1.ListConversationResponse{Utterances: found, NextPageToken: next, HistoryRemoved: removed}, nil
}

func checkTime(field string, t *timestamppb.Timestamp) error {
	if t != nil && t.CheckValid() != nil {
		return fault.Invalid(field, t.String(), "must be a time of the years 1 to 9999, such as "+time.RFC3339)
	}
	return nil
}

// utteranceOf returns what an event of the conversation says.
func utteranceOf(ev *journal.Event) (*agentv1.Utterance, error) {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		m := p.GetMessage()
		return &agentv1.Utterance{
			Speaker: speakerOf(m), Text: m.GetText(), MessageId: m.GetMessageId(),
			CreatedAt: m.GetCreatedAt(),
		}, nil
	case *agentv1.RoundSubmitted:
		r := p.GetRound()
		return &agentv1.Utterance{
			Speaker: agentv1.Speaker_SPEAKER_AGENT, Text: r.GetText(), TurnId: r.GetTurnId(),
			RoundIndex: r.GetIndex(), CreatedAt: r.GetCreatedAt(),
		}, nil
	}
	return nil, fault.InternalError.Newf("wal_seq %d is no utterance", ev.WalSeq)
}

// speakerOf returns who said m, which must be a message of a conversation. A message that comes
// neither from a supervisor nor from a channel is the operator's.
func speakerOf(m *agentv1.Message) agentv1.Speaker {
	switch m.GetKind() { //nolint:exhaustive // the others are no part of a conversation
	case agentv1.MessageKind_MESSAGE_KIND_DELEGATION, agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP:
		return agentv1.Speaker_SPEAKER_SUPERVISOR
	case agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT:
		return agentv1.Speaker_SPEAKER_CHANNEL
	}
	return agentv1.Speaker_SPEAKER_OPERATOR
}
