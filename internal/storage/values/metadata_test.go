package values

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/upstream/wire"
)

// described is an object with all metadata that is read, and much that must be skipped.
func described() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "dependent", Namespace: "default", UID: "0b9eb2c6-1b13-4f3b-a9cc-1d8a4b6f7f20", ResourceVersion: "7", Generation: 300,
			Labels:                     map[string]string{"uid": "not this", "metadata": `{"uid":"nor this"}`},
			Annotations:                map[string]string{"quoted": `a \" }] { \u0022`},
			CreationTimestamp:          metav1.Unix(1_700_000_000, 0),
			DeletionTimestamp:          &metav1.Time{Time: metav1.Unix(1_700_000_100, 0).Time},
			DeletionGracePeriodSeconds: new(int64(30)),
			Finalizers:                 []string{"foregroundDeletion", "example.com/mine"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "owner-1", BlockOwnerDeletion: new(true), Controller: new(true)},
				{APIVersion: "example.com/v1", Kind: "Widget", Name: "other", UID: "owner-2"},
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}},
		},
		Data: map[string]string{"metadata": `{"uid":"nor that"}`},
	}
}

func asProtobuf(t testing.TB, o runtime.Object) []byte {
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func asJSON(t testing.TB, o runtime.Object) []byte {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := runtime.Encode(unstructured.UnstructuredJSONScheme, &unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestMetadataOfBothForms(t *testing.T) {
	full := described()
	bare := &corev1.ConfigMap{TypeMeta: full.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: "bare", UID: "bare"}}
	for _, o := range []*corev1.ConfigMap{full, bare} {
		want := Metadata{UID: o.UID, Deleting: o.DeletionTimestamp != nil, Finalizers: o.Finalizers, Owners: o.OwnerReferences}
		indented := new(bytes.Buffer)
		if err := json.Indent(indented, asJSON(t, o), "", " \t"); err != nil {
			t.Fatal(err)
		}
		for form, value := range map[string][]byte{"protobuf": asProtobuf(t, o), "JSON": asJSON(t, o), "indented JSON": indented.Bytes()} {
			got, err := readMetadata(value)
			if err != nil {
				t.Fatalf("%s of %s: %v", form, o.Name, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s of %s: -want +got:\n%s", form, o.Name, diff)
			}
		}
	}
}

// A tenant chooses the fields of custom resources: only metadata is metadata.
func TestMetadataIsCaseSensitive(t *testing.T) {
	for text, want := range map[string]types.UID{
		`{"Metadata":{"uid":"forged"},"metadata":{"uid":"true"}}`:                   "true",
		`{"metadata":{"UID":"forged","uid":"true"}}`:                                "true",
		`{"metadata":{"uid":"true","UID":"forged"}}`:                                "true",
		`{"a":[{"metadata":{"uid":"forged"}}],"metadata":{"uid":"true"}}`:           "true",
		`{"a":"\"metadata\":{\"uid\":\"forged\"}","b":1.5,"metadata":{"uid":"x"} }`: "x",
		`{"Metadata":{"uid":"forged"}}`:                                             "",
		` {} `:                                                                      "",
	} {
		if got, err := readMetadata([]byte(text)); err != nil || got.UID != want {
			t.Errorf("%s: got UID %q and %v, want %q", text, got.UID, err, want)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add(asProtobuf(f, described()))
	f.Add(asJSON(f, described()))
	f.Add([]byte(`{"metadata":{"uid":"\u0061"},"x":[1,{"y":"}"}]}`))
	f.Add([]byte("k8s\x00\x12\x80"))
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := readMetadata(value)
		if err != nil || bytes.HasPrefix(value, []byte(wire.Magic)) {
			return
		}
		var whole map[string]json.RawMessage
		if json.Unmarshal(value, &whole) != nil || strings.Count(string(value), `"metadata"`) != 1 || strings.Contains(string(value), `\`) {
			return // malformed, or with a member that is written in several ways
		}
		var object struct {
			UID types.UID `json:"uid"`
		}
		if m := whole["metadata"]; m != nil && !strings.Contains(strings.ToLower(string(m)), `"uid"`) && got.UID != "" {
			t.Errorf("%q: UID %q from nowhere", value, got.UID)
		} else if strings.Count(strings.ToLower(string(m)), `"uid"`) == 1 && json.Unmarshal(m, &object) == nil && strings.Contains(string(m), `"uid"`) && object.UID != got.UID {
			t.Errorf("%q: UID %q, want %q", value, got.UID, object.UID)
		}
	})
}

// Truncated values are errors and not objects without owners.
func TestMetadataOfTruncatedValues(t *testing.T) {
	whole := asJSON(t, described())
	for i := range bytes.LastIndex(whole, []byte(`"uid"`)) {
		if got, err := readMetadata(whole[:i]); err == nil {
			t.Fatalf("JSON cut at %d: got %+v", i, got)
		}
	}
	whole = asProtobuf(t, described())
	for i := len(wire.Magic) + 20; i < bytes.Index(whole, []byte("nor that")); i++ {
		if got, err := readMetadata(whole[:i]); err == nil {
			t.Fatalf("protobuf cut at %d: got %+v", i, got)
		}
	}
}

func BenchmarkMetadata(b *testing.B) {
	plain := described()
	plain.OwnerReferences, plain.Finalizers, plain.DeletionTimestamp = nil, nil, nil
	plain.Data = map[string]string{"payload": strings.Repeat("x", 1000)}
	owned := plain.DeepCopy()
	owned.OwnerReferences = described().OwnerReferences[:1]
	k := keys.NativeResource(schema.GroupResource{Resource: "configmaps"}).Key("c1", "default", "dependent")
	kinds := NewKinds("/registry", nil)
	for name, o := range map[string]*corev1.ConfigMap{"plain": plain, "owned": owned} {
		for form, value := range map[string][]byte{"protobuf": asProtobuf(b, o), "JSON": asJSON(b, o)} {
			b.Run(fmt.Sprintf("%s/%s/%dB", form, name, len(value)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := kinds.Metadata(b.Context(), k, value); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
