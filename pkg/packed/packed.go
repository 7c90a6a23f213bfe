// Package packed keeps messages that are seldom read in little memory.
package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/s2"
	"google.golang.org/protobuf/proto"
)

// maxBytes bounds a message, so that damaged bytes do not take all memory.
const maxBytes = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns a message in few bytes: its deterministic encoding as a block of package s2, and behind it the CRC-32C
// of that block, little endian.
func Encode(m proto.Message) ([]byte, error) {
	plain, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("packed: %w", err)
	}
	block := s2.EncodeBetter(nil, plain)
	b := append(make([]byte, 0, len(block)+crc32.Size), block...) // the block has room for more
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(block, castagnoli)), nil
}

// Decode reads into m what Encode returned. Bytes that were changed are an error.
func Decode(b []byte, m proto.Message) error {
	n := len(b) - crc32.Size
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return errors.New("packed: the checksum is another one")
	}
	size, err := s2.DecodedLen(b[:n])
	if err == nil && size > maxBytes {
		err = fmt.Errorf("%d bytes", size)
	}
	var plain []byte
	if err == nil {
		plain, err = s2.Decode(nil, b[:n])
	}
	if err == nil {
		err = proto.Unmarshal(plain, m)
	}
	if err != nil {
		return fmt.Errorf("packed: %w", err)
	}
	return nil
}

// Read is Decode for bytes that were encoded by this process or checked when they were loaded. It panics if they were
// changed in memory since, as every call that needs them would fail.
func Read(b []byte, m proto.Message) {
	if err := Decode(b, m); err != nil {
		panic(unreadable(err))
	}
}

func unreadable(err error) string {
	return fmt.Sprintf("packed: what was kept in memory cannot be read: %v", err)
}
