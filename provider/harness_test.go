package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/unforked/kcp/kcptest"
	"github.com/unforked/kcp/provider"
)

// The schema accepts any size, and the Go type only a number.
const widgetExport = `
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: v1.widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {type: object, properties: {
      spec: {type: object, properties: {size: {x-kubernetes-preserve-unknown-fields: true}}},
      status: {type: object, properties: {phase: {type: string}}}}}
---
apiVersion: apis.kcp.io/v1alpha2
kind: APIExport
metadata: {name: widgets}
spec: {resources: [{group: example.com, name: widgets, schema: v1.widgets.example.com, storage: {crd: {}}}]}
`

var (
	widgets  = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	bindings = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	exports  = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
)

// Widget is the Go type of the kind.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Size int `json:"size,omitempty"`
	} `json:"spec,omitempty"`
	Status struct {
		Phase string `json:"phase,omitempty"`
	} `json:"status,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (w *Widget) DeepCopyObject() runtime.Object {
	c := *w
	w.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// WidgetList is a list of Widgets.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Widget `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *WidgetList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	gv := widgets.GroupVersion()
	s.AddKnownTypes(gv, &Widget{}, &WidgetList{})
	metav1.AddToGroupVersion(s, gv)
	return s
}

// poison is a size that the controller does not expect.
const poison = -7

func widget(name, size string) string {
	return fmt.Sprintf("{apiVersion: example.com/v1, kind: Widget, metadata: {name: %s}, spec: {size: %s}}", name, size)
}

func binding(to string) string {
	return fmt.Sprintf("{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: widgets}, spec: {reference: {export: {path: %s, name: widgets}}}}", to)
}

// A record has the engagements of all replicas of a test.
type record struct {
	mu    sync.Mutex
	live  map[string]engagement
	count map[string]int
	twice []string // tenants that were engaged while they still were
}

type engagement struct {
	ctx     context.Context
	replica string
	cluster cluster.Cluster
}

func newRecord() *record { return &record{live: map[string]engagement{}, count: map[string]int{}} }

// of returns the tenants that a replica serves; "" stands for all replicas.
func (r *record) of(replica string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, e := range r.live {
		if e.ctx.Err() == nil && (replica == "" || e.replica == replica) {
			names = append(names, name)
		}
	}
	return names
}

func (r *record) cluster(name string) cluster.Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[name].cluster
}

func (r *record) times(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[name]
}

// An observer is a part of a manager that keeps a record.
type observer struct {
	*record
	replica string
}

// Engage implements multicluster.Aware.
func (o observer) Engage(ctx context.Context, name multicluster.ClusterName, c cluster.Cluster) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() != nil {
		return nil // it has left already
	}
	if e, ok := o.live[string(name)]; ok && e.ctx.Err() == nil {
		o.twice = append(o.twice, string(name))
	}
	o.live[string(name)] = engagement{ctx, o.replica, c}
	o.count[string(name)]++
	return nil
}

// Start implements manager.Runnable.
func (o observer) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// A process is a running manager.
type process struct {
	provider *provider.Provider
	cut      atomic.Bool  // its requests fail
	pages    atomic.Int64 // if not 0, larger pages are refused as too large
	stop     func()
}

// Round trips fail while a process is cut off.
type line struct {
	http.RoundTripper
	p *process
}

func (l line) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.p.cut.Load() {
		return nil, errors.New("the network is down")
	}
	if most := l.p.pages.Load(); most > 0 {
		if limit, err := strconv.ParseInt(req.URL.Query().Get("limit"), 10, 64); err == nil && limit > most {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_ = json.NewEncoder(w).Encode(apierrors.NewRequestEntityTooLargeError("list in pages").Status())
			return w.Result(), nil
		}
	}
	return l.RoundTripper.RoundTrip(req)
}

// run runs a provider with a controller that sets the phase of Widgets to Done.
func run(t testing.TB, cfg *rest.Config, r *record, replicas *provider.Replicas, prepare ...func(*process)) *process {
	t.Helper()
	return runWith(t, cfg, r, replicas, false, prepare...)
}

// runWith is run. With eachTenant, multicluster-runtime has a source for each tenant.
func runWith(t testing.TB, cfg *rest.Config, r *record, replicas *provider.Replicas, eachTenant bool, prepare ...func(*process)) *process {
	t.Helper()
	p := &process{}
	for _, f := range prepare {
		f(p)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return line{rt, p} })
	s := newScheme()
	var err error
	p.provider, err = provider.New(cfg, provider.Options{Export: "widgets", Scheme: s, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := mcmanager.New(cfg, p.provider, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	if replicas != nil {
		name = replicas.Name
	}
	err = mgr.GetFieldIndexer().IndexField(t.Context(), &Widget{}, "size", func(o client.Object) []string {
		w, _ := o.(*Widget)
		if w.Spec.Size < 0 {
			panic("a negative size")
		}
		return []string{fmt.Sprint(w.Spec.Size)}
	})
	if err == nil {
		err = mgr.Add(observer{r, name})
	}
	if err == nil {
		build := mcbuilder.ControllerManagedBy(mgr).For(&Widget{})
		if !eachTenant {
			build = provider.For(mgr, &Widget{}, predicate.NewPredicateFuncs(func(o client.Object) bool {
				if w, _ := o.(*Widget); w.Spec.Size == poison {
					panic("poisoned")
				}
				return true
			}))
		}
		err = build.
			WithOptions(mccontroller.Options{NewQueue: provider.NewQueue, SkipNameValidation: new(true)}).
			Complete(finisher{mgr})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// A finisher sets the phase of Widgets.
type finisher struct{ mgr mcmanager.Manager }

// Reconcile implements reconcile.TypedReconciler.
func (f finisher) Reconcile(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
	c, err := f.mgr.GetCluster(ctx, req.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	var w Widget
	if err := c.GetClient().Get(ctx, req.NamespacedName, &w); err != nil || w.Status.Phase == "Done" {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := w.DeepCopyObject().(*Widget)
	w.Status.Phase = "Done"
	return ctrl.Result{}, client.IgnoreNotFound(c.GetClient().Status().Patch(ctx, &w, client.MergeFrom(before)))
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(2 * kcptest.DefaultTimeout)
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("timed out: %s", what)
		}
	}
}

func (r *record) awaitEngaged(t testing.TB, names ...string) {
	t.Helper()
	slices.Sort(names)
	until(t, fmt.Sprint("engaged are ", names), func() bool { return slices.Equal(sorted(r.of("")), names) })
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// check fails if a tenant was engaged twice at a time.
func (r *record) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.twice) > 0 {
		t.Errorf("engaged twice at a time: %s", strings.Join(r.twice, ", "))
	}
}
