package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// A reasonContext has the reason for its end as an error for clients: upstream's translator of WebSockets sends it.
type reasonContext struct {
	context.Context
	reason func() string // empty if there is none
}

// Err implements [context.Context].
func (c reasonContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		return nil
	}
	if text := c.reason(); text != "" {
		return &apierrors.StatusError{ErrStatus: endStatus(text)}
	}
	return err
}

func endStatus(text string) metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonGone, Message: text}
}

// lastFrame returns the last frame of SPDY of a command that the server ends, with the reason, or nil. Clients of all
// protocols make the stream of errors first.
func lastFrame(protocol, text string) []byte {
	const stream, fin = 1, 1
	if text == "" {
		return nil
	}
	message := []byte(text)
	switch protocol {
	case remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV5Name:
		var err error
		if message, err = json.Marshal(endStatus(text)); err != nil {
			return nil
		}
	}
	frame := binary.BigEndian.AppendUint32(nil, stream)
	frame = binary.BigEndian.AppendUint32(frame, fin<<24|uint32(len(message)))
	return append(frame, message...)
}

// A spdyWriter writes frames of SPDY as they are, and knows whether the last one is complete.
type spdyWriter struct {
	to     io.Writer
	header []byte // of the next frame
	left   int    // bytes of the content
}

// Write implements [io.Writer].
func (w *spdyWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	for rest := p[:n]; len(rest) > 0; {
		if skip := min(w.left, len(rest)); skip > 0 {
			w.left, rest = w.left-skip, rest[skip:]
			continue
		}
		w.header, rest = append(w.header, rest[0]), rest[1:]
		if len(w.header) == 8 {
			w.left, w.header = int(binary.BigEndian.Uint32(w.header[4:])&0xffffff), w.header[:0]
		}
	}
	return n, err
}

func (w *spdyWriter) whole() bool { return w.left == 0 && len(w.header) == 0 }

// lastFrameTimeout is how long a client has to read the last frame of a stream that the server ends.
const lastFrameTimeout = 5 * time.Second

// A reasonReader reads a log, and adds a line with the reason why the server ends it.
type reasonReader struct {
	from   io.Reader
	reason func() string // empty if there is none
	rest   io.Reader     // set once from has ended
	inLine bool          // the last byte was no line break
}

// Read implements [io.Reader].
func (r *reasonReader) Read(p []byte) (int, error) {
	if r.rest != nil {
		return r.rest.Read(p)
	}
	n, err := r.from.Read(p)
	if n > 0 {
		r.inLine = p[n-1] != '\n'
	}
	if err == nil || n > 0 && errors.Is(err, io.EOF) {
		return n, nil
	}
	text := r.reason()
	if text == "" {
		return n, err
	}
	text = "error: the log ends: " + text + "\n"
	if r.inLine {
		text = "\n" + text
	}
	r.rest = strings.NewReader(text)
	if n > 0 {
		return n, nil
	}
	return r.rest.Read(p)
}
