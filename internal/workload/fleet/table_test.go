package fleet

import (
	"context"
	"errors"
	"net/http"
	"slices"
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
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
)

// fixed is a cache of a list that never changes. The list waits for open.
func fixed[T kcp.Object](list runtime.Object, open <-chan struct{}) *kcp.Kind[T] {
	return kcp.NewKind[T]("fixed", &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			await(ctx, open)
			return list, ctx.Err()
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, nil)
}

// starting is a fleet without kinds of Kubernetes and with one Assignment, of a Database. Its caches fill until the
// test ends. The ResourceProfile of Databases is listed when profiles is closed, and Databases cannot be listed.
func starting(t *testing.T, profiles <-chan struct{}) *fleet {
	t.Helper()
	at := map[string]string{clusterAnnotation: "compute"}
	described := workload.ResourceProfile{ObjectMeta: metav1.ObjectMeta{Name: "databases.example.com", Annotations: at},
		Spec: workload.ResourceProfileSpec{Group: "example.com", Version: "v1", Resource: "databases", Class: workload.Singleton}}
	assigned := workload.Assignment{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", Annotations: map[string]string{clusterAnnotation: "tenant"}}}
	assigned.Spec.Workload = workload.WorkloadReference{Group: "example.com", Resource: "databases", Name: "db", UID: "u1"}
	assigned.Spec.Targets = []workload.AssignedTarget{{Key: "east", Location: "default", Phase: workload.Active}}
	open := make(chan struct{})
	close(open)
	f := &fleet{manager: &manager{}, compute: "compute", term: &term{},
		placements:  fixed[*scheduling.Placement](&scheduling.PlacementList{}, open),
		assignments: fixed[*workload.Assignment](&workload.AssignmentList{Items: []workload.Assignment{assigned}}, open),
		reports:     fixed[*workload.TargetStatus](&workload.TargetStatusList{}, open)}
	if err := f.index(); err != nil {
		t.Fatal(err)
	}
	k := &f.kinds
	k.fleet, k.settled, k.needed, k.need = f, make(chan struct{}), make(chan struct{}), func() {}
	close(k.needed)
	k.own = fixed[*workload.ResourceProfile](&workload.ResourceProfileList{Items: []workload.ResourceProfile{described}}, profiles)
	var err error
	if k.all, err = dynamic.NewForConfig(&rest.Config{Host: "https://x", QPS: -1, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("it cannot be listed")
	})}); err != nil {
		t.Fatal(err)
	}
	var end context.CancelFunc
	f.ctx, end = context.WithCancel(context.Background())
	t.Cleanup(func() { end(); f.term.work.Wait() })
	for _, run := range []func(context.Context){f.placements.Run, f.assignments.Run, f.reports.Run} {
		f.term.work.Go(func() { run(f.ctx) })
	}
	return f
}

// After a start, the scheduler waits until it knows the kinds of all ResourceProfiles. Without them, the dependencies
// of their workloads would look unused. A kind that cannot be listed does not delay the scheduler.
func TestKindsAreKnownFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		profiles := make(chan struct{})
		f := starting(t, profiles)
		f.kinds.start()
		synctest.Wait()
		select {
		case <-f.kinds.settled:
			t.Fatal("decisions begin before the ResourceProfiles are listed")
		default:
		}
		close(profiles)
		<-f.kinds.settled
		if f.kinds.get(schema.GroupResource{Group: "example.com", Resource: "databases"}) == nil {
			t.Error("decisions begin before the kinds of the ResourceProfiles are known")
		}
	})
}

// An Assignment of a kind without a profile counts: what follows workloads stays, and so does what they refer to.
func TestUnknownKindsAreUsed(t *testing.T) {
	f := starting(t, nil)
	<-f.assignments.Ready()
	in := kcp.Key{Cluster: "tenant", Namespace: "default", Name: "password"}
	if got := f.spansOf(in); !slices.Equal(got, []span{{"east", "default"}}) {
		t.Errorf("the namespace has workloads at %v", got)
	}
	secret := engine.ID{GroupResource: schema.GroupResource{Resource: "secrets"}, Key: in}
	if unused, err := (side{f, "east"}).Unused(t.Context(), secret); unused || err != nil {
		t.Errorf("unused: %t, %v", unused, err)
	}
}

// A roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
