// Package kcptest starts a real API server for tests: one for the whole test binary, in a
// fraction of a second. Each test gets a new logical cluster in it, so tests run in
// parallel and never see each other's objects.
//
//	func TestController(t *testing.T) {
//		c := kcptest.New(t)
//		mgr, err := ctrl.NewManager(c.Config, ctrl.Options{…})
//		…
//	}
//
// The server runs in the test process and ends with it. Its data is in a temporary
// directory, which is removed when the process ends; on Windows only [Universe.Close]
// removes it.
package kcptest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/cluster"
)

const startTimeout = time.Minute

// DefaultTimeout is the timeout of [Cluster.Wait].
const DefaultTimeout = 30 * time.Second

// A Universe is a server for tests. [New] uses a universe that all tests of the binary
// share. Declare another one, as a package variable or in TestMain, for a server with
// kinds, rules or loops.
type Universe struct {
	// Server is the server to start with the first cluster. The default is an empty
	// kcp.Server. If its Dir is empty, it gets a temporary directory.
	Server *kcp.Server

	once sync.Once
	err  error
	temp *tempDir // nil if Server has a Dir of its own
}

// shared is the universe of [New].
var shared = sync.OnceValue(func() *Universe { return &Universe{} })

// New returns a new logical cluster of the server that all tests of the binary share.
func New(t testing.TB) *Cluster {
	t.Helper()
	return shared().New(t)
}

// Start starts the server. Later calls return the same result.
func (u *Universe) Start() (*kcp.Server, error) {
	u.once.Do(func() { u.err = u.start() })
	return u.Server, u.err
}

func (u *Universe) start() error {
	if u.Server == nil {
		u.Server = &kcp.Server{}
	}
	u.Server.NoSync = true // tests need no data after a crash of the machine
	if u.Server.Dir == "" {
		var err error
		if u.temp, err = newTempDir(); err != nil {
			return err
		}
		u.Server.Dir = u.temp.path
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := u.Server.Start(ctx); err != nil {
		return errors.Join(err, u.removeTemp())
	}
	return nil
}

// Close stops the server and removes its temporary directory. Without it, both end with
// the process.
func (u *Universe) Close() error {
	if u.Server == nil || u.err != nil {
		return nil
	}
	return errors.Join(u.Server.Close(), u.removeTemp())
}

func (u *Universe) removeTemp() error {
	if u.temp == nil {
		return nil
	}
	temp := u.temp
	u.temp = nil
	return temp.remove()
}

// New returns a new logical cluster.
func (u *Universe) New(t testing.TB) *Cluster {
	t.Helper()
	srv, err := u.Start()
	if err != nil {
		t.Fatalf("kcptest: %v", err)
	}
	name := string(cluster.NewName())
	cfg, err := srv.Cluster(t.Context(), name)
	if err != nil {
		t.Fatalf("kcptest: %v", err)
	}
	c := &Cluster{Name: name, Server: srv, Config: cfg, t: t}
	if c.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		t.Fatalf("kcptest: %v", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatalf("kcptest: %v", err)
	}
	c.discovery = disco
	return c
}

// A Cluster is a logical cluster that belongs to one test.
type Cluster struct {
	Name   string
	Server *kcp.Server
	// Config is the configuration of clients that may do anything in the cluster.
	Config *rest.Config
	// Dynamic is a client of the cluster.
	Dynamic dynamic.Interface

	discovery discovery.DiscoveryInterface
	t         testing.TB
}

// Apply creates or changes the objects in manifests, YAML or JSON documents, as
// "kubectl apply --server-side" does. Namespaced objects without a namespace go to
// "default". Apply returns the last object.
func (c *Cluster) Apply(manifests string) *unstructured.Unstructured {
	c.t.Helper()
	var last *unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifests)), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return last
		} else if err != nil {
			c.t.Fatalf("kcptest: read manifest: %v", err)
		}
		if len(o.Object) == 0 {
			continue
		}
		client := c.client(o.GroupVersionKind(), o.GetNamespace())
		applied, err := client.Apply(c.t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "kcptest", Force: true})
		if err != nil {
			c.t.Fatalf("kcptest: apply %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		last = applied
	}
}

// client returns a client for a kind. It reads discovery each time: a test may change the
// kinds of its cluster.
func (c *Cluster) client(kind schema.GroupVersionKind, namespace string) dynamic.ResourceInterface {
	c.t.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.discovery)
	if err != nil {
		c.t.Fatalf("kcptest: discovery: %v", err)
	}
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		c.t.Fatalf("kcptest: %v", err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.Dynamic.Resource(mapping.Resource)
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return c.Dynamic.Resource(mapping.Resource).Namespace(namespace)
}

// Wait watches an object until done returns true, and returns the object; o is nil while
// the object does not exist. After [DefaultTimeout] it fails the test and prints the object.
func (c *Cluster) Wait(gvr schema.GroupVersionResource, namespace, name string, done func(o *unstructured.Unstructured) bool) *unstructured.Unstructured {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), DefaultTimeout)
	defer cancel()
	client := c.Dynamic.Resource(gvr).Namespace(namespace)
	var last *unstructured.Unstructured
	for ctx.Err() == nil {
		o, ok, err := waitOnce(ctx, client, name, done)
		if ok {
			return o
		}
		if err != nil && ctx.Err() == nil {
			c.t.Fatalf("kcptest: wait for %s %s: %v", gvr.Resource, name, err)
		}
		last = o
	}
	text, err := json.MarshalIndent(last, "", "  ")
	c.t.Fatalf("kcptest: %s %s is not in the expected state (%v): %s", gvr.Resource, name, errors.Join(ctx.Err(), err), text)
	return nil
}

// waitOnce waits until one watch ends. It returns the last state of the object.
func waitOnce(ctx context.Context, client dynamic.ResourceInterface, name string, done func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, bool, error) {
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	list, err := client.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, false, err
	}
	var last *unstructured.Unstructured
	if len(list.Items) > 0 {
		last = &list.Items[0]
	}
	if done(last) {
		return last, true, nil
	}
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.GetResourceVersion()})
	if apierrors.IsResourceExpired(err) {
		return last, false, nil
	}
	if err != nil {
		return last, false, err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		switch o := e.Object.(type) {
		case *unstructured.Unstructured:
			if last = o; e.Type == watch.Deleted {
				last = nil
			}
		default:
			return last, false, fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
		}
		if done(last) {
			return last, true, nil
		}
	}
	return last, false, nil
}
