package wire

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The decoder of a kind accepts fields of other versions of the kind in every form, and Next reads what
// follows them.
func TestNextGoesOnWhereDecodersDo(t *testing.T) {
	object, err := (&corev1.ConfigMap{Data: map[string]string{"a": "b"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string]string{
		"nothing":            "",
		"a number":           "\x78\x01",
		"a number of 70 bit": "\x78" + strings.Repeat("\xff", 9) + "\x7f",
		"a tag of 70 bit":    "\xfa" + strings.Repeat("\x80", 8) + "\x7e\x01x",
		"64 bits":            "\x79" + strings.Repeat("x", 8),
		"32 bits":            "\x7d" + strings.Repeat("x", 4),
		"a text":             "\x7a\x01x",
		"a group":            "\x7b\x08\x01\x7c",
	} {
		message := slices.Concat([]byte(before), object)
		var decoded corev1.ConfigMap
		if err := decoded.Unmarshal(message); err != nil || decoded.Data["a"] != "b" {
			t.Errorf("after %s: %v, %v", name, decoded.Data, err)
		}
		var data [][]byte
		for rest := message; len(rest) > 0; {
			f, ok := Next(rest)
			if !ok {
				t.Errorf("after %s: no field in %q", name, rest)
				break
			}
			if f.Number == 2 && f.Delimited {
				data = append(data, f.Value)
			}
			rest = rest[f.Size:]
		}
		if len(data) != 1 || string(data[0]) != "\x0a\x01a\x12\x01b" {
			t.Errorf("after %s: %q", name, data)
		}
	}
}

// Next never reads beyond the end of a message.
func FuzzNext(f *testing.F) {
	f.Add([]byte("\x0a\x01a\x12\x01b"))
	f.Add([]byte("\x12\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, message []byte) {
		for len(message) > 0 {
			f, ok := Next(message)
			if !ok {
				return
			}
			if f.Size <= 0 || f.Size > len(message) || !strings.HasSuffix(string(message[:f.Size]), string(f.Value)) {
				t.Fatalf("%+v", f)
			}
			message = message[f.Size:]
		}
	})
}
