package journal

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestFindReturnsTheFirstPayloadOfTheType(t *testing.T) {
	first := &durationpb.Duration{Seconds: 1}
	events := []*Event{
		{Payload: &timestamppb.Timestamp{}}, {Payload: first}, {Payload: &durationpb.Duration{Seconds: 2}},
	}
	got, ok := Find[*durationpb.Duration](events)
	require.True(t, ok)
	require.Same(t, first, got)
}

func TestFindReportsThatNoEventHasTheType(t *testing.T) {
	got, ok := Find[*durationpb.Duration]([]*Event{{Payload: &timestamppb.Timestamp{}}})
	require.False(t, ok)
	require.Nil(t, got)
}

func TestAnswerOfBuildsTheResponseOfItsEvent(t *testing.T) {
	answer := AnswerOf(func(p *durationpb.Duration) int64 { return p.GetSeconds() })
	got, err := answer([]*Event{{Payload: &timestamppb.Timestamp{}}, {Payload: &durationpb.Duration{Seconds: 7}}})
	require.NoError(t, err)
	require.EqualValues(t, 7, got)
	_, err = answer([]*Event{{Payload: &timestamppb.Timestamp{}}})
	require.EqualError(t, err, "journal: no Duration among 1 events")
}
