package store

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
)

// described is an object with everything in its metadata that there is to find, and
// much that must be passed over.
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

// A tenant chooses the fields of custom resources: those that look like the
// metadata are not.
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
		if err != nil || bytes.HasPrefix(value, protobufMagic) {
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

// Values that were cut are errors and not objects without owners.
func TestMetadataOfTruncatedValues(t *testing.T) {
	whole := asJSON(t, described())
	for i := range bytes.LastIndex(whole, []byte(`"uid"`)) {
		if got, err := readMetadata(whole[:i]); err == nil {
			t.Fatalf("JSON cut at %d: got %+v", i, got)
		}
	}
	whole = asProtobuf(t, described())
	for i := len(protobufMagic) + 20; i < bytes.Index(whole, []byte("nor that")); i++ {
		if got, err := readMetadata(whole[:i]); err == nil {
			t.Fatalf("protobuf cut at %d: got %+v", i, got)
		}
	}
}

func TestMetadataOfStoredObject(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", "c2")
	for _, ns := range []string{"a", "b"} {
		o := described()
		o.Namespace, o.DeletionTimestamp, o.ResourceVersion = ns, nil, ""
		if err := cm.Create(in("c1"), cmRoot+"/"+ns+"/dependent", o, &corev1.ConfigMap{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	at := Key{NativeResource(configMaps), "c1", "a", "dependent"}
	m, rev, err := s.Metadata(t.Context(), at)
	if err != nil || rev == 0 || m.UID != described().UID || len(m.Owners) != 2 {
		t.Errorf("got %+v at %d, %v", m, rev, err)
	}
	keys, err := s.Namesakes(t.Context(), at.Resource, "c1", "dependent")
	if err != nil || len(keys) != 2 || keys[0] != at {
		t.Errorf("namesakes are %v, %v", keys, err)
	}
	at.Cluster = "c2"
	if _, rev, err := s.Metadata(t.Context(), at); err != nil || rev != 0 {
		t.Errorf("in the other cluster: found at %d, %v", rev, err)
	}
	if keys, err := s.Namesakes(t.Context(), at.Resource, "c2", "dependent"); err != nil || len(keys) != 0 {
		t.Errorf("namesakes in the other cluster are %v, %v", keys, err)
	}
}

func TestMetadataOfEncryptedObject(t *testing.T) {
	s, err := Open(t.Context(), here(Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Encryption: encrypting(t, aesgcm("one"))}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	create(t, s, "c1")
	secrets := NativeResource(schema.GroupResource{Resource: "secrets"})
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	s.register(secrets, tenantCodec{scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)})
	if _, err := s.Commit(t.Context(), []Write{{Resource: secrets, Cluster: "c1", Object: &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"},
	}}}); err != nil {
		t.Fatal(err)
	}
	k := Key{secrets, "c1", "ns", "s"}
	if m, _, err := s.Metadata(t.Context(), k); err != nil || m.UID != "u" {
		t.Errorf("got %+v, %v", m, err)
	}
	resp, err := s.RawClient().Get(t.Context(), s.prefix+k.full())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	e := Event{Key: k, value: resp.Kvs[0].Value, store: s}
	if m, err := e.Metadata(t.Context()); err != nil || m.UID != "u" {
		t.Errorf("event: got %+v, %v", m, err)
	}
	e.Key.Name = "other"
	if m, err := e.Metadata(t.Context()); err == nil {
		t.Errorf("at another key: got %+v", m)
	}
}

func BenchmarkMetadata(b *testing.B) {
	plain := described()
	plain.OwnerReferences, plain.Finalizers, plain.DeletionTimestamp = nil, nil, nil
	plain.Data = map[string]string{"payload": strings.Repeat("x", 1000)}
	owned := plain.DeepCopy()
	owned.OwnerReferences = described().OwnerReferences[:1]
	k := Key{NativeResource(configMaps), "c1", "default", "dependent"}
	s := &Store{kinds: map[string]kind{k.kindPrefix(): {}}}
	for name, o := range map[string]*corev1.ConfigMap{"plain": plain, "owned": owned} {
		for form, value := range map[string][]byte{"protobuf": asProtobuf(b, o), "JSON": asJSON(b, o)} {
			b.Run(fmt.Sprintf("%s/%s/%dB", form, name, len(value)), func(b *testing.B) {
				b.ReportAllocs()
				e := Event{Key: k, value: value, store: s}
				for b.Loop() {
					if _, err := e.Metadata(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
