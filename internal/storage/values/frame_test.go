package values

import (
	"bytes"
	"strings"
	"testing"
)

// A frame is cut where it was put together; anything else is an error.
func FuzzFrame(f *testing.F) {
	f.Add("c1/ns/x", []byte("{}"), []byte{})
	f.Add("", []byte{}, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(strings.Repeat("x", 300), []byte{0}, []byte{200})
	f.Fuzz(func(t *testing.T, tail string, value, garbage []byte) {
		got, rest, err := CutFrame(AppendFrame(nil, tail, value))
		if err != nil || got != tail || !bytes.Equal(rest, value) {
			t.Errorf("got %q, %q, %v", got, rest, err)
		}
		if got, rest, err := CutFrame(garbage); err == nil && len(got)+len(rest) >= len(garbage) {
			t.Errorf("%q is cut into %q and %q", garbage, got, rest)
		}
	})
}
