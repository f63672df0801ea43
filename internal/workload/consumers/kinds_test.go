package consumers

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
)

// fixed is a cache of a list that never changes. The list waits for open.
func fixed[T kcp.Object](list runtime.Object, open <-chan struct{}) *kcp.Kind[T] {
	return kcp.NewKind[T]("fixed", &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			objects.Await(ctx, open)
			return list, ctx.Err()
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, nil)
}

// starting is a cache without kinds of Kubernetes and with one Assignment, of a Database. Its caches fill until the
// test ends. The ResourceProfile of Databases is listed when profiles is closed, and Databases cannot be listed.
func starting(t *testing.T, profiles <-chan struct{}) *Cache {
	t.Helper()
	at := map[string]string{core.ClusterAnnotation: "compute"}
	described := workload.ResourceProfile{ObjectMeta: metav1.ObjectMeta{Name: "databases.example.com", Annotations: at},
		Spec: workload.ResourceProfileSpec{Group: "example.com", Version: "v1", Resource: "databases", Class: workload.Singleton}}
	assigned := workload.Assignment{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", Annotations: map[string]string{core.ClusterAnnotation: "tenant"}}}
	assigned.Spec.Workload = workload.WorkloadReference{Group: "example.com", Resource: "databases", Name: "db", UID: "u1"}
	assigned.Spec.Targets = []workload.AssignedTarget{{Key: "east", Location: "default", Phase: workload.Active}}
	open := make(chan struct{})
	close(open)
	c := &Cache{options: Options{Compute: "compute"}, work: &sync.WaitGroup{}, settled: make(chan struct{}), needed: make(chan struct{}), need: func() {},
		Placements:  fixed[*scheduling.Placement](&scheduling.PlacementList{}, open),
		Assignments: fixed[*workload.Assignment](&workload.AssignmentList{Items: []workload.Assignment{assigned}}, open),
		Reports:     fixed[*workload.TargetStatus](&workload.TargetStatusList{}, open),
		Profiles:    fixed[*workload.ResourceProfile](&workload.ResourceProfileList{Items: []workload.ResourceProfile{described}}, profiles)}
	if err := c.index(); err != nil {
		t.Fatal(err)
	}
	close(c.needed)
	var err error
	if c.objectsIn, err = dynamic.NewForConfig(&rest.Config{Host: "https://x", QPS: -1, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("it cannot be listed")
	})}); err != nil {
		t.Fatal(err)
	}
	var end context.CancelFunc
	c.ctx, end = context.WithCancel(context.Background())
	t.Cleanup(func() { end(); c.work.Wait() })
	for _, run := range []func(context.Context){c.Placements.Run, c.Assignments.Run, c.Reports.Run} {
		c.work.Go(func() { run(c.ctx) })
	}
	return c
}

// After a start, decisions wait until the kinds of all ResourceProfiles are known. Without them, the dependencies
// of their workloads would look unused. A kind that cannot be listed does not delay the decisions.
func TestKindsAreKnownFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		profiles := make(chan struct{})
		c := starting(t, profiles)
		settled := false
		c.startKinds(func() { settled = true })
		synctest.Wait()
		select {
		case <-c.Settled():
			t.Fatal("decisions begin before the ResourceProfiles are listed")
		default:
		}
		close(profiles)
		<-c.Settled()
		if c.Kind(schema.GroupResource{Group: "example.com", Resource: "databases"}) == nil {
			t.Error("decisions begin before the kinds of the ResourceProfiles are known")
		}
		if synctest.Wait(); !settled {
			t.Error("the owner of the cache does not learn that decisions begin")
		}
	})
}

// An Assignment of a kind without a profile counts: what it may refer to stays.
func TestUnknownKindsAreUsed(t *testing.T) {
	c := starting(t, nil)
	<-c.Assignments.Ready()
	secret := engine.ID{GroupResource: schema.GroupResource{Resource: "secrets"}, Key: kcp.Key{Cluster: "tenant", Namespace: "default", Name: "password"}}
	if unused, err := c.Desired("east").Unused(t.Context(), secret); unused || err != nil {
		t.Errorf("unused: %t, %v", unused, err)
	}
}

// A roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
