package server_test

import (
	"bytes"
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

// The previous version stored leases as v1beta1. This version reads them and stores them as
// v1, next to values that cannot be decoded.
func TestLeasesOfAnOlderProgram(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), cluster.NewName()
	_, stop := restartable(t, dir, name)
	stop()

	serializer, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	old := legacyscheme.Codecs.EncoderForVersion(serializer.Serializer, coordinationv1beta1.SchemeGroupVersion)
	lease := &coordinationv1beta1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "held"}}
	lease.Spec.HolderIdentity = new("somebody")
	value := must(runtime.Encode(old, lease))(t)
	if !bytes.Contains(value, []byte("v1beta1")) {
		t.Fatalf("%q", value)
	}
	key := "/registry/n/coordination.k8s.io/leases/-/" + string(name) + "/default/"
	st := must(store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true}))(t)
	for key, value := range map[string]string{
		key + "held": string(value), key + "bad": "\x00",
		"/registry/s/meta": `{"layout":1,"minimumReader":1,"kubernetes":"1.35"}`, "/registry/s/manners": "{}",
	} {
		if _, err := st.RawClient().Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	st.Close()

	c, _ := restartable(t, dir, name)
	in := c.server.Store().RawClient()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	awaitValue(ctx, t, in, key+"held", func(v []byte) bool { return !bytes.Contains(v, []byte("v1beta1")) })
	awaitValue(ctx, t, in, "/registry/s/meta", func(v []byte) bool {
		return bytes.Equal(v, []byte(`{"layout":1,"minimumReader":1,"kubernetes":"1.36"}`))
	})
	got, err := c.kube.CoordinationV1().Leases("default").Get(t.Context(), "held", metav1.GetOptions{})
	if err != nil || *got.Spec.HolderIdentity != "somebody" {
		t.Errorf("the lease is now %v, %v", got, err)
	}
	awaitValue(ctx, t, in, key+"bad", func(v []byte) bool { return string(v) == "\x00" })
}

// awaitValue waits until the stored value of a key is as wanted.
func awaitValue(ctx context.Context, t *testing.T, in *clientv3.Client, key string, wanted func([]byte) bool) {
	t.Helper()
	changes := in.Watch(ctx, key)
	for {
		resp := must(in.Get(ctx, key))(t)
		if len(resp.Kvs) > 0 && wanted(resp.Kvs[0].Value) {
			return
		}
		if _, ok := <-changes; !ok {
			t.Fatalf("at %s is still %q", key, resp.Kvs[0].Value)
		}
	}
}
