package stream

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
)

// mostFrame is the maximum of the bytes of a frame of a WebSocket. Upstream keeps a frame of up to 32 MiB in memory
// until the client has sent all of it, which it need not do. kubectl sends 32 KiB at a time.
const mostFrame = 1 << 20

// framed is the response of a WebSocket whose frames are limited.
type framed struct{ http.ResponseWriter }

// Unwrap lets [http.ResponseController] find the writer of the server.
func (w framed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker].
func (w framed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReadWriter(bufio.NewReader(&frames{from: both.Reader}), both.Writer), nil
}

// frames reads a WebSocket as it is, and fails at the header of a frame that is too large.
type frames struct {
	from   io.Reader
	left   uint64 // bytes of the payload
	header []byte // of the next frame
}

// Read implements [io.Reader].
func (f *frames) Read(p []byte) (int, error) {
	n, err := f.from.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if skip := min(f.left, uint64(len(rest))); skip > 0 {
			f.left, rest = f.left-skip, rest[skip:]
			continue
		}
		f.header, rest = append(f.header, rest[0]), rest[1:]
		if size, ok := sizeOf(f.header); ok {
			if size > mostFrame {
				return 0, fmt.Errorf("a frame has %d bytes, and the limit is %d", size, mostFrame)
			}
			f.left, f.header = size, f.header[:0]
		}
	}
	return n, err
}

// sizeOf returns the size of the payload of a frame, if its header is complete.
func sizeOf(header []byte) (size uint64, complete bool) {
	if len(header) < 2 {
		return 0, false
	}
	more, masked := 0, header[1]&0x80 != 0
	switch size = uint64(header[1] & 0x7f); size {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	if need := 2 + more; masked && len(header) < need+4 || len(header) < need {
		return 0, false
	}
	switch more {
	case 2:
		size = uint64(binary.BigEndian.Uint16(header[2:]))
	case 8:
		size = binary.BigEndian.Uint64(header[2:])
	}
	return size, true
}
