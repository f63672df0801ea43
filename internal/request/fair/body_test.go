package fair

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/upstream/wire"
)

// Measure counts members in every encoding, and ignores the content of strings.
func TestMeasure(t *testing.T) {
	many := &corev1.ConfigMap{Data: map[string]string{}}
	for i := range 5000 {
		many.Data[fmt.Sprint("key", i)] = ""
	}
	text := &corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat(`"x": [1, 2, "\\"], `, 20_000)}}
	for name, say := range map[string]struct {
		object    *corev1.ConfigMap
		low, high int
	}{"many keys": {many, 5000, 16_000}, "one text": {text, 1, 100}} {
		asJSON, err := json.Marshal(say.object)
		if err != nil {
			t.Fatal(err)
		}
		asYAML, err := yaml.JSONToYAML(asJSON)
		if err != nil {
			t.Fatal(err)
		}
		var asProtobuf strings.Builder
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(say.object, &asProtobuf); err != nil {
			t.Fatal(err)
		}
		for encoding, body := range map[string][]byte{"JSON": asJSON, "protobuf": []byte(asProtobuf.String()), "YAML": asYAML} {
			got := Measure(body)
			if encoding == "YAML" && name == "one text" {
				continue // its lines and commas count
			}
			if got.Bytes != len(body) || got.Members < say.low || got.Members > say.high {
				t.Errorf("%s in %s: %+v", name, encoding, got)
			}
		}
	}
}

// Members count that a decoder makes objects of, whatever is before or after them.
func TestMeasureReadsAsDecodersDo(t *testing.T) {
	many := &corev1.ConfigMap{Data: map[string]string{}}
	for i := range 1000 {
		many.Data[fmt.Sprint("key", i)] = ""
	}
	raw, err := many.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, object := range map[string][]byte{
		"after a group":                slices.Concat([]byte("\x7b\x7c"), raw),
		"after a number of 70 bits":    slices.Concat([]byte("\x78"+strings.Repeat("\xff", 9)+"\x7f"), raw),
		"before the decoder fails":     slices.Concat(raw, []byte("\x12")),
		"with nothing before or after": raw,
	} {
		var decoded corev1.ConfigMap
		if _ = decoded.Unmarshal(object); len(decoded.Data) != 1000 {
			t.Fatalf("%s: %d are decoded", name, len(decoded.Data))
		}
		envelope, err := (&runtime.Unknown{Raw: object}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got := Measure(slices.Concat([]byte(wire.Magic), envelope)); got.Members < 1000 {
			t.Errorf("%s: %d members", name, got.Members)
		}
	}
}
