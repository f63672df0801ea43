package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/sharing/bind"
)

// BenchmarkSharing binds one export in many clusters. It reports the live heap and the processor
// time of a binding, the time until all bindings have another schema, and how many events a second
// a watch of all clusters gets. The writer of these events is etcd's client, so that requests of
// tenants are no limit.
func BenchmarkSharing(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if testing.Short() {
				n = 20
			}
			for b.Loop() {
				shareWith(b, n)
			}
		})
	}
}

// A sharing is a provider and its consumers.
type sharing struct {
	*testing.B
	server   *running
	provider cluster.Name
	of       []cluster.Name
}

func (s *sharing) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *sharing) in(c cluster.Name, r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	client, err := dynamic.NewForConfig(s.server.InProcess(string(c), server.System()))
	s.ok(err)
	return client.Resource(r)
}

// each calls f for each number below n, a few at the same time.
func (s *sharing) each(n int, f func(i int) error) {
	s.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if s.Failed() {
		s.FailNow()
	}
}

func (s *sharing) create(c cluster.Name, r schema.GroupVersionResource, o *unstructured.Unstructured) {
	s.Helper()
	_, err := s.in(c, r).Create(s.Context(), o, metav1.CreateOptions{})
	s.ok(err)
}

func shareWith(b *testing.B, n int) {
	s := &sharing{B: b, server: start(b, b.TempDir()), provider: cluster.NewName(), of: make([]cluster.Name, n)}
	defer s.server.Close()
	s.ok(s.server.MakeCluster(b.Context(), s.provider))
	for _, version := range []string{"v1", "v2"} {
		s.create(s.provider, apiSchemas, widgetSchema(version, "color"))
	}
	s.create(s.provider, apiExports, widgetExport("widgets", "v1"))
	s.each(n, func(i int) error {
		s.of[i] = cluster.NewName()
		return s.server.MakeCluster(b.Context(), s.of[i])
	})
	client := &http.Client{Transport: s.server.InProcess("root", server.System()).Transport}
	body, err := json.Marshal(bindingTo("widgets", s.provider, "widgets").Object)
	s.ok(err)
	s.create(s.provider, apiBindings, bindingTo("first", s.provider, "widgets")) // makes what all share
	before, cpu := liveHeap(), processTime()
	s.each(n, func(i int) error {
		_, err := post(b.Context(), client, string(s.of[i])+"/apis/apis.kcp.io/v1alpha2/apibindings", string(body))
		return err
	})
	b.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(n), "cpu-µs/binding")
	b.ReportMetric(float64(liveHeap()-before)/float64(n), "heap-B/binding")
	s.events(client)
	s.rollOut(n + 1)
}

// rollOut gives the export another schema, and waits until all bindings have it.
func (s *sharing) rollOut(bindings int) {
	etcd := s.server.Store().RawClient()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	changes := etcd.Watch(ctx, "/registry"+bind.BindingResource().Prefix()+"/", clientv3.WithPrefix())
	cpu, begin := processTime(), time.Now()
	_, err := s.in(s.provider, apiExports).Patch(ctx, "widgets", types.MergePatchType,
		[]byte(`{"spec":{"resources":[{"group":"example.com","name":"widgets","schema":"v2.widgets.example.com","storage":{"crd":{}}}]}}`), metav1.PatchOptions{})
	s.ok(err)
	for seen := map[string]bool{}; len(seen) < bindings; {
		resp, ok := <-changes
		if !ok || resp.Err() != nil {
			s.Fatalf("the watch ended with %d bindings: %v", len(seen), resp.Err())
		}
		for _, e := range resp.Events {
			if bytes.Contains(e.Kv.Value, []byte(`"v2.widgets.example.com"`)) {
				seen[string(e.Kv.Key)] = true
			}
		}
	}
	s.ReportMetric(time.Since(begin).Seconds()*1000, "ms/rollout")
	s.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(bindings), "cpu-µs/rollout-binding")
}

// events writes objects for a watch through the view of the provider, as fast as that reads them.
func (s *sharing) events(client *http.Client) {
	n := 20_000
	if testing.Short() {
		n = 100
	}
	etcd := s.server.Store().RawClient()
	w := newWidget("model")
	w.SetLabels(map[string]string{"app": "bench"})
	made, err := s.in(s.of[0], sharedWidgets).Namespace("default").Create(s.Context(), w, metav1.CreateOptions{})
	s.ok(err)
	resp, err := etcd.Get(s.Context(), "/registry/c/example.com/widgets/", clientv3.WithPrefix())
	s.ok(err)
	key, value := string(resp.Kvs[0].Key), string(resp.Kvs[0].Value)
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://kcp/services/apiexport/"+string(s.provider)+
		"/widgets/clusters/*/apis/example.com/v1/widgets?watch=1&resourceVersion="+made.GetResourceVersion(), nil)
	s.ok(err)
	req.Header.Set("Accept", "application/json")
	stream, err := client.Do(req)
	s.ok(err)
	if stream.StatusCode != http.StatusOK {
		s.Fatal(stream.Status)
	}
	unread := make(chan struct{}, 500) // a watch ends if its reader is too far behind
	cpu, begin, counted := processTime(), time.Now(), make(chan error, 1)
	go func() {
		lines := bufio.NewReaderSize(stream.Body, 1<<20)
		for range n {
			if _, err := lines.ReadSlice('\n'); err != nil {
				counted <- err
				return
			}
			<-unread
		}
		counted <- stream.Body.Close()
	}()
	s.each(n, func(i int) error {
		select {
		case unread <- struct{}{}:
		case err := <-counted:
			return fmt.Errorf("the watch ended: %w", err)
		}
		name := fmt.Sprint("w", i)
		at := strings.Replace(strings.TrimSuffix(key, "model"), string(s.of[0]), string(s.of[i%len(s.of)]), 1) + name
		of := strings.NewReplacer(`"name":"model"`, `"name":"`+name+`"`, string(made.GetUID()), fmt.Sprintf("%s%08d", made.GetUID()[:28], i))
		_, err := etcd.Put(s.Context(), at, of.Replace(value))
		return err
	})
	s.ok(<-counted)
	s.ReportMetric(float64(n)/time.Since(begin).Seconds(), "events/s")
	s.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(n), "cpu-µs/event")
}

// BenchmarkMaintain changes a type with many workspaces whose default bindings are maintained. It
// reports the time and the processor time until all have another binding, and the time until a
// workspace of another tenant has one, whose type changes meanwhile.
func BenchmarkMaintain(b *testing.B) {
	for _, n := range []int{250, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if testing.Short() {
				n = 10
			}
			for b.Loop() {
				maintain(b, n)
			}
		})
	}
}

func maintain(b *testing.B, n int) {
	s := &sharing{B: b, server: start(b, b.TempDir()), provider: cluster.NewName()}
	defer s.server.Close()
	owner, other := cluster.NewName(), cluster.NewName()
	for _, c := range []cluster.Name{s.provider, owner, other} {
		s.ok(s.server.MakeCluster(b.Context(), c))
	}
	s.create(s.provider, apiSchemas, widgetSchema("v1", "color"))
	s.create(s.provider, apiExports, widgetExport("widgets", "v1"))
	for _, c := range []cluster.Name{owner, other} {
		s.create(c, workspaceTypes, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: kept}, spec: {defaultAPIBindingLifecycle: Maintain, extend: {with: [{name: universal, path: root}]}}}`))
	}
	s.create(other, workspaces, of("w", "", "kept"))
	s.each(n, func(i int) error {
		_, err := s.in(owner, workspaces).Create(b.Context(), of(fmt.Sprint("w", i), "", "kept"), metav1.CreateOptions{})
		return err
	})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	changes := s.server.Store().RawClient().Watch(ctx, "/registry"+bind.BindingResource().Prefix()+"/", clientv3.WithPrefix())
	add := func(c cluster.Name) {
		_, err := s.in(c, workspaceTypes).Patch(ctx, "kept", types.MergePatchType, []byte(`{"spec":{"defaultAPIBindings":[{"export":"widgets","path":"`+string(s.provider)+`"}]}}`), metav1.PatchOptions{})
		s.ok(err)
	}
	theirs := clusterOf(s.get(other, workspaces, "w"))
	cpu, begin := processTime(), time.Now()
	add(owner)
	add(other)
	meanwhile := time.Now()
	for seen := map[string]bool{}; len(seen) <= n; {
		resp, ok := <-changes
		if !ok || resp.Err() != nil {
			s.Fatalf("the watch ended with %d bindings: %v", len(seen), resp.Err())
		}
		for _, e := range resp.Events {
			key := string(e.Kv.Key)
			if strings.Contains(key, "/widgets-") && !seen[key] {
				if seen[key] = true; strings.Contains(key, "/"+string(theirs)+"/") {
					b.ReportMetric(time.Since(meanwhile).Seconds()*1000, "ms/other-tenant")
				}
			}
		}
	}
	b.ReportMetric(time.Since(begin).Seconds()*1000, "ms/change")
	b.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(n), "cpu-µs/binding")
}

func (s *sharing) get(c cluster.Name, r schema.GroupVersionResource, name string) *unstructured.Unstructured {
	s.Helper()
	o, err := s.in(c, r).Get(s.Context(), name, metav1.GetOptions{})
	s.ok(err)
	return o
}
