package store

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

func TestMetadataOfStoredObject(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", "c2")
	for _, ns := range []string{"a", "b"} {
		o := configMap(ns, "dependent", "")
		o.UID, o.OwnerReferences = "u", []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "owner-1"}, {APIVersion: "example.com/v1", Kind: "Widget", Name: "other", UID: "owner-2"}}
		if err := cm.Create(in("c1"), cmRoot+"/"+ns+"/dependent", o, &corev1.ConfigMap{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	at := keys.NativeResource(configMaps).Key("c1", "a", "dependent")
	m, rev, err := s.Metadata(t.Context(), at)
	if err != nil || rev == 0 || m.UID != "u" || len(m.Owners) != 2 {
		t.Errorf("got %+v at %d, %v", m, rev, err)
	}
	keys, err := s.KeysNamed(t.Context(), at.Resource, "c1", "dependent")
	if err != nil || len(keys) != 2 || keys[0] != at {
		t.Errorf("namesakes are %v, %v", keys, err)
	}
	at.Cluster = "c2"
	if _, rev, err := s.Metadata(t.Context(), at); err != nil || rev != 0 {
		t.Errorf("in the other cluster: found at %d, %v", rev, err)
	}
	if keys, err := s.KeysNamed(t.Context(), at.Resource, "c2", "dependent"); err != nil || len(keys) != 0 {
		t.Errorf("namesakes in the other cluster are %v, %v", keys, err)
	}
}

func TestMetadataOfEncryptedObject(t *testing.T) {
	s, err := Open(t.Context(), here(Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Encryption: storetest.Encrypting(t, storetest.AESGCM("one"))}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	create(t, s, "c1")
	secrets := keys.NativeResource(schema.GroupResource{Resource: "secrets"})
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	s.values.Register(secrets, values.Codec{Codec: scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)})
	if _, err := s.Commit(t.Context(), []Write{{Resource: secrets, Cluster: "c1", Object: &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"},
	}}}); err != nil {
		t.Fatal(err)
	}
	k := secrets.Key("c1", "ns", "s")
	if m, _, err := s.Metadata(t.Context(), k); err != nil || m.UID != "u" {
		t.Errorf("got %+v, %v", m, err)
	}
	resp, err := s.RawClient().Get(t.Context(), s.prefix+k.Path())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	e, ok := s.Feed().Event(&clientv3.Event{Kv: resp.Kvs[0]})
	if m, err := e.Metadata(t.Context()); err != nil || !ok || m.UID != "u" {
		t.Errorf("event: got %+v, %v", m, err)
	}
	e.Key.Name = "other"
	if m, err := e.Metadata(t.Context()); err == nil {
		t.Errorf("at another key: got %+v", m)
	}
}
