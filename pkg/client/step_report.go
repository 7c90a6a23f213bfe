package client

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/utf8cut"
)

const (
	// maxReportBytes bounds one report. The server accepts at most 200 artifacts of 256
	// characters and three texts of 16 KiB, which is less.
	maxReportBytes = 512 << 10
	// maxMessageBytes bounds the reports of one message, which the server accepts up to
	// fault.MaxRequestBytes.
	maxMessageBytes = 1 << 20
)

// sendable returns a report with the content of r that can be encoded and sent, whatever a
// handler returned: a report that breaks the stream would be sent again on the next stream and
// break that too. Texts are made valid and cut to what the server accepts. A report that is
// still too large, because of its artifacts, becomes the report of a failed step.
func sendable(r *boardv1.StepReport) *boardv1.StepReport {
	if r.ResultSummary != nil {
		summary := validText(r.GetResultSummary())
		r.ResultSummary = &summary
	}
	r.Reason, r.WorkerResult = validText(r.GetReason()), validText(r.GetWorkerResult())
	for i, id := range r.GetArtifactIds() {
		r.ArtifactIds[i] = validChars(id)
	}
	if n := proto.Size(r); n > maxReportBytes {
		return &boardv1.StepReport{
			RunId: r.GetRunId(), Status: boardv1.StepStatus_STEP_STATUS_FAILED, Finished: r.GetFinished(),
			Reason: fmt.Sprintf("the result has %d bytes with its %d artifacts, the limit is %d", n,
				len(r.GetArtifactIds()), maxReportBytes),
		}
	}
	return r
}

// validText returns s as the server accepts it as free text: valid, and at most
// fault.MaxFreeTextBytes long.
func validText(s string) string {
	if len(s) > 4*fault.MaxFreeTextBytes { // so that a huge text is not copied as a whole
		s = s[:4*fault.MaxFreeTextBytes]
	}
	return utf8cut.Bytes(validChars(s), fault.MaxFreeTextBytes)
}

// validChars returns s with U+FFFD in place of NUL and of bytes that are not UTF-8.
func validChars(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
