package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// A log that the server ends has a last line that says why, whatever its reader is like. Others stay as they are.
func TestReasonReader(t *testing.T) {
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		log, why, want string
		err            error
	}{
		"whole lines": {"a\nb\n", "deleted", "a\nb\nerror: the log ends: deleted\n", lost},
		"in a line":   {"a\nb", "deleted", "a\nb\nerror: the log ends: deleted\n", lost},
		"empty":       {"", "deleted", "error: the log ends: deleted\n", lost},
		"the client":  {"a\n", "", "a\n", lost},
		"it ended":    {"a\n", "", "a\n", io.EOF},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "with an error": iotest.DataErrReader, "bytes": iotest.OneByteReader} {
			from := io.MultiReader(strings.NewReader(c.log), iotest.ErrReader(c.err))
			got, err := io.ReadAll(&reasonReader{from: reader(from), reason: func() string { return c.why }})
			if wanted := c.why == "" && !errors.Is(c.err, io.EOF); string(got) != c.want || (err != nil) != wanted {
				t.Errorf("%s, %s: %q, %v", name, how, got, err)
			}
		}
	}
}

// The last frame of a command is one of its stream of errors, and comes only between two frames.
func TestLastFrame(t *testing.T) {
	for protocol, json := range map[string]bool{remotecommand.StreamProtocolV5Name: true, remotecommand.StreamProtocolV4Name: true, remotecommand.StreamProtocolV3Name: false} {
		var wire bytes.Buffer
		w := &spdyWriter{to: &wire}
		frames := []byte("\x80\x03\x00\x06\x00\x00\x00\x04ping" + "\x00\x00\x00\x05\x00\x00\x00\x06output")
		for _, part := range [][]byte{frames[:3], frames[3:15], frames[15:]} {
			if w.whole() != (wire.Len() == 0) {
				t.Errorf("after %d bytes: whole %v", wire.Len(), w.whole())
			}
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if !w.whole() || !bytes.Equal(wire.Bytes(), frames) {
			t.Errorf("not as it was, or not between two frames: %q", wire.Bytes())
		}
		last := lastFrame(protocol, "deleted")
		if stream, rest := binary.BigEndian.Uint32(last), binary.BigEndian.Uint32(last[4:]); stream != 1 || rest>>24 != 1 || int(rest&0xffffff) != len(last)-8 || message(t, last[8:], json) != "deleted" {
			t.Errorf("%s: the last frame is %q", protocol, last)
		}
		if _, err := w.Write([]byte{0, 0, 0, 5, 0, 0, 0, 2, 'x'}); err != nil || w.whole() {
			t.Errorf("a frame without its end counts: %v", err)
		}
	}
	if lastFrame(remotecommand.StreamProtocolV4Name, "") != nil {
		t.Error("a command that the client ends has a last frame")
	}
}

func message(t *testing.T, text []byte, isJSON bool) string {
	t.Helper()
	if !isJSON {
		return string(text)
	}
	var s metav1.Status
	if err := json.Unmarshal(text, &s); err != nil || s.Status != metav1.StatusFailure {
		t.Errorf("status %s: %v", text, err)
	}
	return s.Message
}
