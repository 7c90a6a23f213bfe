// Package jetlog implements framelog.Log on NATS JetStream: one stream for each segment of a partition, one message
// for each frame. It also keeps the snapshots of a partition in a stream.
//
// The connection must be one of pkg/natsd, with ReconnectBufSize(-1), so that no frame is sent
// after its append has returned (R5).
package jetlog

import (
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
)

// Headers of a frame.
const (
	HeaderFrame      = "Quartet-Frame"
	HeaderGeneration = "Quartet-Generation"
	HeaderLink       = "Quartet-Link"
)

// JetStream error codes that are not ambiguous.
const (
	codeWrongSequence     = 10071
	codeWrongSequenceBusy = 10164
	codeAccountFull       = 10002 // the account has no space left
	codeServerFull        = 10023 // the server has no space left
	codeMessageTooLarge   = 10054 // larger than the stream's max_msg_size
)

// HeaderRoom is how many bytes of max_payload are left for the headers of a frame, and for what the journal adds to
// the events of a command.
const HeaderRoom = 64 << 10

// pullBytes bounds the bytes that a reader asks for at once. It is larger than the largest message.
const pullBytes = 32 << 20

// followBytes is the same for a follower, of which there may be many: one for each stream of events to a
// client that reads older events. It is just larger than the largest message.
const followBytes = 9 << 20

// frameBytes is less than any frame takes as a message. The client makes a channel for as many messages as it may ask
// for, and drops what does not fit, status messages included; so it may ask for more messages than there are in the
// bytes.
const frameBytes = 128

// Header returns the header of the message of frame f. With it, the broker stores the message only in stream, and
// only if the last message of the subject has the sequence number expect, or if the subject has none and expect is 0.
func Header(stream string, expect uint64, f framelog.Frame) nats.Header {
	link, _ := f.Message()
	return nats.Header{
		jetstream.ExpectedStreamHeader:      {stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expect, 10)},
		HeaderFrame:                         {f.ID},
		HeaderGeneration:                    {strconv.FormatUint(f.Generation, 10)},
		HeaderLink:                          {link},
	}
}

// Body returns the data of the message of a frame.
func Body(f framelog.Frame) []byte {
	_, body := f.Message()
	return body
}

// Decode returns the frame of a message. If its link cannot be read, the frame has Link.Format -1, and reading the
// log fails there.
func Decode(h nats.Header, body []byte) framelog.Frame {
	generation, _ := strconv.ParseUint(h.Get(HeaderGeneration), 10, 64)
	// A link that cannot be read is like one of a format that is unknown here: no frame continues it.
	f, err := framelog.ParseMessage(h.Get(HeaderLink), body)
	if err != nil {
		f = framelog.Frame{Body: body, Link: framelog.Link{Format: -1}}
	}
	f.ID, f.Generation = h.Get(HeaderFrame), generation
	return f
}
