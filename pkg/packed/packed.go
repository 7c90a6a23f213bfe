// Package packed keeps messages that are seldom read in little memory.
package packed

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"
)

// maxBytes bounds a message, so that damaged bytes do not take all memory.
const maxBytes = 1 << 30

var encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<17))
})

var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxBytes))
})

// Encode returns a message in few bytes. The same message always has the same bytes.
func Encode(m proto.Message) ([]byte, error) {
	z, err := encoder()
	if err != nil {
		return nil, fmt.Errorf("packed: %w", err)
	}
	plain, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("packed: %w", err)
	}
	b := z.EncodeAll(plain, nil)
	return append(make([]byte, 0, len(b)), b...), nil // what EncodeAll returns has room for more
}

// Decode reads into m what Encode returned. Bytes that were changed are an error.
func Decode(b []byte, m proto.Message) error {
	z, err := decoder()
	if err != nil {
		return fmt.Errorf("packed: %w", err)
	}
	plain, err := z.DecodeAll(b, nil)
	if err == nil {
		err = proto.Unmarshal(plain, m)
	}
	if err != nil {
		return fmt.Errorf("packed: %w", err)
	}
	return nil
}
