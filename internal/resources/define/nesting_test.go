package define

import (
	"encoding/binary"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/unforked/kcp/internal/upstream/wire"
)

// nestedProps is the message of a schema that is nested in "not" n levels deep.
func nestedProps(n int) []byte {
	sizes := make([]int, n+1)
	for i := range n {
		sizes[i+1] = sizes[i] + 2 + len(binary.AppendUvarint(nil, uint64(sizes[i])))
	}
	var b []byte
	for i := n - 1; i >= 0; i-- {
		b = binary.AppendUvarint(append(b, 0xe2, 0x01), uint64(sizes[i])) // field 28
	}
	return b
}

// The nesting of a message is determined before it is decoded, also for encodings that only
// lenient decoders accept.
func TestNesting(t *testing.T) {
	deep := nestedProps(200)
	if err := new(apiextensionsv1.JSONSchemaProps).Unmarshal(deep); err != nil {
		t.Fatal(err)
	}
	overflowing := append([]byte{0x08}, append([]byte(strings.Repeat("\xff", 9)), 0x7f)...) // a number of 70 bits
	for name, tc := range map[string]struct {
		message []byte
		deeper  bool
	}{
		"empty":            {nil, false},
		"flat":             {nestedProps(1), false},
		"deep":             {deep, true},
		"deep enough":      {nestedProps(90), false},
		"after a number":   {append([]byte{0x08, 0x01}, deep...), true},
		"after a large":    {append(overflowing, deep...), true},
		"in a group":       {append([]byte{0x0b}, deep...), true},
		"text":             {[]byte(strings.Repeat("just some text, and umlauts: äöü ", 10_000)), false},
		"lengths too long": {[]byte(strings.Repeat("\x12\xff\xff\xff\xff\x0f", 1000)), false},
	} {
		if got := nestedDeeper(append([]byte(wire.Magic), tc.message...), 100); got != tc.deeper {
			t.Errorf("%s: %v", name, got)
		}
	}
	for i := range len(deep) { // wherever it is cut off
		nestedDeeper(deep[:i], 1000)
	}
}

// A decoded definition is never deeper than reported.
func FuzzNesting(f *testing.F) {
	for _, n := range []int{0, 1, 5, 60} {
		f.Add(nestedProps(n))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var p apiextensionsv1.JSONSchemaProps
		_ = p.Unmarshal(message) // as far as it goes
		depth := 0
		for at := p.Not; at != nil; at = at.Not {
			depth++
		}
		if depth > 1 && !nestedDeeper(append([]byte(wire.Magic), message...), depth-1) { // the innermost may be empty
			t.Errorf("%d levels deep", depth)
		}
	})
}
