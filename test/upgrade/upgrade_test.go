// Package upgrade tests that this program opens the data of earlier ones, and refuses that of
// later ones.
package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/storage/etcd"
)

const (
	// earlier is the commit whose program wrote testdata. It is from before the sharing of APIs.
	earlier = "c20db8b"
	// expected is the file in a root directory with the objects that are stored in it.
	expected = "expected.json"
	patience = 2 * time.Minute
)

var archive = filepath.Join("testdata", earlier+".tar.gz")

// A request makes an object.
type request struct{ path, body string }

// content returns what the earlier program stores: one object of each sort, in two workspaces.
func content() []request {
	const a, b = "/clusters/root:a", "/clusters/root:a:b"
	return []request{
		{"/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"a","labels":{"l":"1"}},"spec":{"type":{"name":"universal","path":"root"}}}`},
		{a + "/apis/tenancy.kcp.io/v1alpha1/workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"b"}}`},
		{a + "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}`},
		{a + "/api/v1/namespaces/ns/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","finalizers":["example.com/hold"],"annotations":{"x":"y"}},"data":{"k":"v"}}`},
		{a + "/api/v1/namespaces/ns/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"v"}}`},
		{a + "/api/v1/namespaces/ns/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot"}}`},
		{a + "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`},
		{a + "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"r"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"kind":"ServiceAccount","namespace":"ns","name":"robot"}]}`},
		{a + "/apis/coordination.k8s.io/v1/namespaces/ns/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`},
		{b + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}}}]}}`},
		{b + "/apis/example.com/v1/namespaces/default/things", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"one"},"spec":{"n":1}}`},
	}
}

// A client requests a server.
type client struct {
	t    *testing.T
	http *http.Client
	host string
}

func newClient(t *testing.T, config *rest.Config) client {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client{t, c, config.Host}
}

// try sends a request, and returns the status of the response and its body.
func (c client) try(method, path, body string) (int, []byte) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.host+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, text
}

// objects returns the objects of content by path, without what may change: how they are stored,
// and at what URL they are.
func (c client) objects() map[string]any {
	c.t.Helper()
	all := map[string]any{}
	for _, made := range content() {
		for _, o := range c.list(made.path) {
			meta := o["metadata"].(map[string]any)
			if meta["name"] == "kube-root-ca.crt" {
				continue // the CA is not part of the data
			}
			for _, field := range []string{"resourceVersion", "managedFields", "generation"} {
				delete(meta, field)
			}
			if spec, ok := o["spec"].(map[string]any); ok && strings.HasSuffix(made.path, "/workspaces") {
				delete(spec, "URL")
				delete(o, "status") // newer programs have more conditions
			}
			all[made.path+"/"+meta["name"].(string)] = o
		}
	}
	return all
}

// list returns the objects at a path. It waits until the path is served: a newer program makes the
// APIBindings of older workspaces in the background.
func (c client) list(path string) []map[string]any {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, text := c.try(http.MethodGet, path, "")
		var list struct {
			Items []map[string]any `json:"items"`
		}
		if err := json.Unmarshal(text, &list); err == nil && status == http.StatusOK {
			return list.Items
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("%s: %d %s", path, status, text)
		}
	}
}

// TestUpgrade opens the data of an earlier program with all objects. In the nightly form it
// builds the earlier program from git, which writes the data anew. With UPGRADE_WRITE=1 it also
// replaces testdata:
//
//	UPGRADE_WRITE=1 go test -run TestUpgrade ./test/upgrade
func TestUpgrade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kcp")
	if os.Getenv("NIGHTLY") != "" || os.Getenv("UPGRADE_WRITE") != "" {
		write(t, dir)
	} else {
		unpack(t, dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, expected))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	if err := json.Unmarshal(text, &want); err != nil || len(want) < len(content()) {
		t.Fatalf("%d objects are expected; %v", len(want), err)
	}
	for range 2 { // the second start reads what the first one has written
		s := &kcp.Server{Dir: dir, NoSync: true}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		config, err := s.As("root", masters{})
		if err != nil {
			t.Fatal(err)
		}
		c := newClient(t, config)
		c.host = strings.TrimSuffix(c.host, "/clusters/root")
		got := c.objects()
		for path, o := range want {
			if diff := cmp.Diff(o, got[path]); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if status, text := c.try(http.MethodPost, "/clusters/root:a:b/apis/example.com/v1/namespaces/default/things",
			`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"generateName":"later-"},"spec":{"n":2}}`); status != http.StatusCreated {
			t.Errorf("a new object is answered %d %s", status, text)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// masters is a member of system:masters.
type masters struct{}

func (masters) GetName() string               { return "upgrade" }
func (masters) GetUID() string                { return "" }
func (masters) GetGroups() []string           { return []string{"system:masters"} }
func (masters) GetExtra() map[string][]string { return nil }

// A program does not start on data that only newer ones can read, and says so.
func TestNewerData(t *testing.T) {
	for description, want := range map[string]string{
		`{"layout":2,"minimumReader":2,"kubernetes":"1.36"}`: "needs a program that reads layout 2; this one reads layout 1: start the version of kcp that wrote it",
		`{"layout":1,"minimumReader":1,"kubernetes":"1.99"}`: "has the encoding of Kubernetes 1.99 and this program that of",
	} {
		dir := t.TempDir()
		b, err := etcd.Open(t.Context(), etcd.Config{}, dir, false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Client.Put(t.Context(), "/registry/s/meta", description)
		b.Close()
		if err != nil {
			t.Fatal(err)
		}
		s := &kcp.Server{Dir: dir, NoSync: true}
		if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("data described by %s: %v", description, err)
		}
	}
}

// write makes a root directory with the earlier program.
func write(t *testing.T, dir string) {
	t.Helper()
	bin := os.Getenv("UPGRADE_PROGRAM") // built before
	if bin == "" {
		bin = build(t)
	}
	server := exec.CommandContext(t.Context(), bin, "start", "--root-directory="+dir, "--secure-port=0")
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	c := await(t, filepath.Join(dir, "admin.kubeconfig"))
	for _, r := range content() {
		if status, text := c.try(http.MethodPost, r.path, r.body); status != http.StatusCreated {
			t.Fatalf("%s: %d %s", r.path, status, text)
		}
	}
	text, err := json.MarshalIndent(c.objects(), "", " ")
	if err == nil {
		err = server.Process.Signal(syscall.SIGTERM)
	}
	if err == nil {
		err = server.Wait()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, expected), text, 0o600)
	}
	if err == nil && os.Getenv("UPGRADE_WRITE") != "" {
		err = pack(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// build builds the earlier program from git.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "archive", earlier).Output()
	if err != nil {
		t.Fatalf("commit %s: %v; fetch the whole history", earlier, err)
	}
	for _, args := range [][]string{{"tar", "-x"}, {"go", "build", "-buildvcs=false", "-o", "kcp", "./cmd/kcp"}} {
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		c.Dir, c.Stdin = dir, bytes.NewReader(source)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return filepath.Join(dir, "kcp")
}

// await returns a client of a server that starts.
func await(t *testing.T, kubeconfig string) client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: "shard-base"}).ClientConfig()
		if err == nil {
			c := newClient(t, config)
			if status, _ := c.try(http.MethodGet, "/readyz", ""); status == http.StatusOK {
				return c
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the server is not ready: %v", err)
		}
	}
}

// packed reports whether a file of a root directory is in testdata: only what is needed.
func packed(name string) bool {
	return strings.HasPrefix(name, "etcd-server/") || name == expected
}

// pack writes testdata.
func pack(dir string) (err error) {
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	zip, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	files := tar.NewWriter(zip)
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || !e.Type().IsRegular() || !packed(name) || strings.HasSuffix(name, ".tmp") {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))})
		}
		if err == nil {
			_, err = files.Write(data)
		}
		return err
	})
	return errors.Join(err, files.Close(), zip.Close())
}

// unpack reads testdata.
func unpack(t *testing.T, dir string) {
	t.Helper()
	in, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	zip, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(zip)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		data, err := io.ReadAll(files)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
