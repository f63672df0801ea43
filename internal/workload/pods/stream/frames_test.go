package stream

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// frameOf returns the header of a masked frame of a WebSocket.
func frameOf(size uint64) []byte {
	header := []byte{0x82}
	switch {
	case size < 126:
		header = append(header, 0x80|byte(size))
	case size < 1<<16:
		header = binary.BigEndian.AppendUint16(append(header, 0x80|126), uint16(size))
	default:
		header = binary.BigEndian.AppendUint64(append(header, 0x80|127), size)
	}
	return append(header, 1, 2, 3, 4)
}

// Frames pass as they are, however they arrive, until one is too large.
func TestFrames(t *testing.T) {
	var fine []byte
	for _, size := range []uint64{0, 1, 125, 126, 1<<16 - 1, 1 << 16, mostFrame, 5} {
		fine = append(append(fine, frameOf(size)...), bytes.Repeat([]byte{0x82}, int(size))...)
	}
	for name, how := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader} {
		if got, err := io.ReadAll(&frames{from: how(bytes.NewReader(fine))}); err != nil || !bytes.Equal(got, fine) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(fine), err)
		}
		for _, size := range []uint64{mostFrame + 1, 32 << 20, 1 << 63} {
			if _, err := io.ReadAll(&frames{from: how(bytes.NewReader(append(fine, frameOf(size)...)))}); err == nil || !strings.Contains(err.Error(), "the limit is") {
				t.Errorf("%s: a frame of %d bytes: %v", name, size, err)
			}
		}
	}
}
