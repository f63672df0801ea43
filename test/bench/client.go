package main

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/test/child"
)

const (
	jsonType     = child.JSON
	protobufType = "application/vnd.kubernetes.protobuf"
)

type client = child.Client

// encoding is the encoding of config maps in requests, the same for every subject.
type encoding struct {
	media  string
	encode func(runtime.Object) ([]byte, error)
}

func newEncoding(name string) (encoding, error) {
	switch name {
	case "json":
		return encoding{jsonType, func(o runtime.Object) ([]byte, error) { return json.Marshal(o) }}, nil
	case "protobuf":
		s := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
		return encoding{protobufType, func(o runtime.Object) ([]byte, error) { return runtime.Encode(s, o) }}, nil
	}
	return encoding{}, fmt.Errorf("encoding %q: want json or protobuf", name)
}

// configMap encodes a config map with one value of the given size. The value begins with
// the given word, so that an update changes the object.
func (e encoding) configMap(name, word string, size int) ([]byte, error) {
	value := word + strings.Repeat("x", max(0, size-len(word)))
	return e.encode(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Data:       map[string]string{"value": value},
	})
}
