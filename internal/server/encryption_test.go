package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/encryption"
	"github.com/unforked/kcp/internal/storage/store"
)

// encryptWith writes a configuration that encrypts all resources with keys of these names.
// The first key is used for writes.
func encryptWith(t *testing.T, file string, names ...string) {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['*.*']\n  providers:\n  - aesgcm: {keys: ["
	for _, n := range names {
		text += "{name: " + n + ", secret: " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(n[:1], 32))) + "},"
	}
	write(t, file, []byte(text+"]}\n"))
}

// storedIn returns the values of all objects in etcd by key.
func storedIn(t *testing.T, s *store.Store) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, root := range []string{"/registry/n/", "/registry/c/"} {
		resp := must(s.RawClient().Get(t.Context(), root, clientv3.WithPrefix()))(t)
		for _, kv := range resp.Kvs {
			all[string(kv.Key)] = kv.Value
		}
	}
	return all
}

// Encryption applies to all objects: of clients, built-in, custom, and those that the server
// creates. When the file gets a new key, the running server rewrites all values, so that the
// old key can be removed.
func TestEncryptionOfEverything(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "encryption.yaml")
	encryptWith(t, file, "one")
	o := server.DefaultOperation()
	o.Encryption = encryption.Options{ConfigFile: file, Reload: true}
	s := operate(t, dir, o)
	s.workspace(t, "encrypted")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "plain-text"}}
	secrets := s.client(t, "root:encrypted", "").CoreV1().Secrets("default")
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for key, value := range storedIn(t, s.Store()) {
		if !bytes.HasPrefix(value, []byte("k8s:enc:aesgcm:v1:one:")) || bytes.Contains(value, []byte("plain-text")) {
			t.Errorf("%s is stored as %.60q", key, value)
		}
		kinds[strings.Split(key, "/")[4]] = true
	}
	for _, kind := range []string{"secrets", "workspaces", "logicalclusters", "namespaces", "clusterrolebindings", "configmaps"} {
		if !kinds[kind] {
			t.Errorf("no %s are stored", kind)
		}
	}

	encryptWith(t, file, "two", "one")
	eventually(t, "everything is encrypted with the new key", func() bool {
		for _, value := range storedIn(t, s.Store()) {
			if !bytes.HasPrefix(value, []byte("k8s:enc:aesgcm:v1:two:")) {
				return false
			}
		}
		return true
	})
	if got, err := secrets.Get(t.Context(), "s", metav1.GetOptions{}); err != nil || string(got.Data["k"]) != "plain-text" {
		t.Errorf("with the new key: %v, %v", got, err)
	}
	s.Close()

	encryptWith(t, file, "two") // no value uses the old key any more
	s = operate(t, dir, o)
	got, err := s.client(t, "root:encrypted", "").CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(got.Data["k"]) != "plain-text" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
	s.Close()

	o.Encryption = encryption.Options{}
	_, err = server.New(t.Context(), server.Config{Dir: dir, NoSync: true, Operation: o})
	if err == nil || !strings.Contains(err.Error(), "--encryption-provider-config") {
		t.Errorf("a start without the keys: %v", err)
	}
}

// A value that is moved to the key of another cluster in etcd cannot be read there. Both
// clusters keep working.
func TestMovedValue(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	encryptWith(t, file, "one")
	o := server.DefaultOperation()
	o.Encryption.ConfigFile = file
	s := operate(t, t.TempDir(), o)
	victim, thief := s.workspace(t, "victim"), s.workspace(t, "thief")
	for _, at := range []string{"root:victim", "root:thief"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"of": at}}
		if _, err := s.client(t, at, "").CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	key := func(c cluster.Name) string { return "/registry/n/core/secrets/-/" + string(c) + "/default/s" }
	value := string(storedIn(t, s.Store())[key(victim)])
	must(s.Store().RawClient().Put(t.Context(), key(thief), value))(t)

	secrets := s.client(t, "root:thief", "").CoreV1().Secrets("default")
	if got, err := secrets.Get(t.Context(), "s", metav1.GetOptions{}); err == nil {
		t.Errorf("the moved secret is read: %v", got.Data)
	}
	if got, err := s.client(t, "root:victim", "").CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(got.Items) == 0 {
		t.Errorf("secrets of another cluster: %v", err)
	}
	// A list of all clusters would lack the secret, which clients would take for a deletion.
	all := s.client(t, "*", shardAdmin(t, s)).CoreV1().Secrets("")
	eventually(t, "a list of all clusters is refused", func() bool {
		_, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=s"})
		return apierrors.IsServiceUnavailable(err)
	})
	if _, err := s.client(t, "root:thief", "").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("other objects of the cluster: %v", err)
	}
	// The value would keep the cluster, because its key may be missing only temporarily.
	must(s.Store().RawClient().Delete(t.Context(), key(thief)))(t)
	eventually(t, "all clusters are listed", func() bool {
		got, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=s"})
		return err == nil && len(got.Items) == 1 && got.Items[0].Annotations[auditCluster] == string(victim)
	})
	if err := s.Remove(t.Context(), thief); err != nil {
		t.Errorf("the cluster cannot be removed: %v", err)
	}
}

// Without the KMS plugin the start fails with a remedy. Values do not count as corrupt.
func TestEncryptionPluginMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	write(t, file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['*.*']\n  providers: [{kms: {apiVersion: v2, name: away, endpoint: 'unix://"+filepath.Join(dir, "kms")+"', timeout: 50ms}}]\n"))
	o := server.DefaultOperation()
	o.Encryption.ConfigFile = file
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	s, err := server.New(ctx, server.Config{Dir: filepath.Join(dir, "new"), NoSync: true, Operation: o})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "--encryption-provider-config") || !strings.Contains(err.Error(), "start the plugin") {
		t.Errorf("a start without the plugin: %v", err)
	}
}

// quickReload shortens the reload interval of encryption configurations, which is a global of
// the process.
func quickReload() {
	encryptioncontroller.EncryptionConfigFileChangePollDuration = 50 * time.Millisecond
}
