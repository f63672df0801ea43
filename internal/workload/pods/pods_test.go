package pods

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

const key, otherKey = "k1k1k1k1k1k1k1k1", "k2k2k2k2k2k2k2k2"

func onePart() *part {
	return partOf(&workspace{cluster: "shop", compute: "compute"}, key)
}

func partOf(w *workspace, key string) *part {
	return w.part(shown.Origin{Namespace: "default", Key: key, Location: "east", Workloads: shown.NewWorkloads(nil)}, &workload.SyncTarget{})
}

func TestParts(t *testing.T) {
	w := &workspace{cluster: "shop", compute: "compute"}
	targets := []workload.SyncTarget{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "2"}}}
	a, b := engine.TargetKey("compute", "a", "1"), engine.TargetKey("compute", "b", "2")
	assigned := func(namespace, resource string, keys ...string) workload.Assignment {
		s := workload.Assignment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		s.Spec.Workload = workload.WorkloadReference{Group: "apps", Resource: resource, Name: "x"}
		for _, k := range keys {
			s.Spec.Targets = append(s.Spec.Targets, workload.AssignedTarget{Key: k, Replicas: new(int32(2))})
		}
		return s
	}
	w.find([]workload.Assignment{assigned("n", "deployments", a, b, "unregistered"), assigned("n", "statefulsets", a), assigned("m", "statefulsets", a, b)}, targets)
	if len(w.parts) != 4 || w.parts[0].Namespace != "m" || w.parts[0].PhysicalName("x-0."+w.parts[0].Key[:6]) != "x-0" {
		t.Errorf("%d parts", len(w.parts))
	}
	for _, p := range w.parts {
		if p.Namespace == "n" && p.Key == a && p.replicas != 4 {
			t.Errorf("%d replicas", p.replicas)
		}
	}
}

// Targets select by what means the same there, and the pods that they return are checked again.
func TestSelects(t *testing.T) {
	label, err := labels.Parse("app=web," + shown.LocationLabel + " in (east)")
	if err != nil {
		t.Fatal(err)
	}
	s := selects(&internalversion.ListOptions{LabelSelector: label, FieldSelector: fields.ParseSelectorOrDie("metadata.name=x,spec.nodeName=east,metadata.namespace=default,status.phase!=Failed,status.podIP=1.2.3.4")})
	if s.push.LabelSelector != "app=web" || s.push.FieldSelector != "metadata.name=x,status.phase!=Failed" {
		t.Errorf("pushed: %+v", s.push)
	}
	if q := selects(&internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie("metadata.name=db-0.k1k1k1")}); q.push.FieldSelector != "" {
		t.Errorf("a name that only the workspace has is pushed: %+v", q.push)
	}
	if q := selects(&internalversion.ListOptions{LabelSelector: labels.Nothing()}); q.push.LabelSelector != labels.Nothing().String() {
		t.Errorf("nothing: %+v", q.push)
	}
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default", Labels: map[string]string{"app": "web", shown.LocationLabel: "east"}},
		Spec: core.PodSpec{NodeName: "east"}, Status: core.PodStatus{Phase: core.PodRunning, PodIPs: []core.PodIP{{IP: "1.2.3.4"}}}}
	if ok, err := s.Matches(pod); !ok || err != nil {
		t.Errorf("a pod that is selected: %v", err)
	}
	pod.Labels[shown.LocationLabel] = "west"
	if ok, err := s.Matches(pod); ok || err != nil {
		t.Errorf("a pod of another Location: %v", err)
	}
}

func TestLimits(t *testing.T) {
	l := newLimits()
	var leave []func()
	for i := range mostStreams {
		f, err := l.enter(streaming("a"))
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		leave = append(leave, f)
	}
	if _, err := l.enter(reading("a"), streaming("a")); err == nil || len(l.used) != 1 {
		t.Errorf("more than the maximum: %v, %v", err, l.used)
	}
	if _, err := l.enter(slot{name: "x", what: streamingOf("shop").what}); err == nil || !strings.HasPrefix(err.Error(), "too many open streams of pods in all workspaces of your tenant: at most 0") {
		t.Errorf("got %v", err)
	}
	if f, err := l.enter(streaming("b")); err != nil {
		t.Error("one workspace is limited by another")
	} else {
		f()
	}
	for _, f := range leave {
		f()
		f() // again does no harm
	}
	if len(l.used) > 0 {
		t.Errorf("left: %v", l.used)
	}
}

// A tenant with many workspaces leaves requests to the targets of a compute workspace to its other consumers.
func TestTenantsShareRequests(t *testing.T) {
	l := newLimits()
	var leave []func()
	got := func(tenant kcp.ClusterName) (n int) {
		for {
			f, err := l.enter(called("compute", tenant))
			if err != nil {
				return n
			}
			leave = append(leave, f)
			n++
		}
	}
	if a, b, c := got("a"), got("b"), got("c"); a != mostOfCompute/2 || b != mostOfCompute/4 || c != mostOfCompute/8 {
		t.Errorf("the tenants get %d, %d and %d of %d", a, b, c, mostOfCompute)
	}
	for _, f := range leave {
		f()
	}
	if len(l.used) > 0 {
		t.Errorf("left: %v", l.used)
	}
}

type answer func(*http.Request) (*http.Response, error)

func (f answer) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// namespaceOf returns the namespace of a part at its target.
func namespaceOf(of *part) string {
	locator, _ := json.Marshal(of.locator()) // strings always encode
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{%q:%q},"annotations":{%q:%q}}}`,
		of.Physical, workload.OwnerLabel, of.Key, workload.LocatorAnnotation, locator)
}

// A physical cluster that answers badly harms only its own part, and fills no memory.
func TestHostileTargets(t *testing.T) {
	of := onePart()
	namespace := namespaceOf(of)
	page := `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1","continue":"more"},"items":[` + strings.TrimSuffix(strings.Repeat(`{"metadata":{"name":"x"}},`, 1000), ",") + `]}`
	for name, c := range map[string]struct {
		body func() io.Reader
		want string
	}{
		"endless":      {func() io.Reader { return io.MultiReader(strings.NewReader(`{"kind":"PodList","items":[`), spaces{}) }, "does not answer"},
		"endless list": {func() io.Reader { return strings.NewReader(page) }, "more than 5000 pods"},
		"malformed":    {func() io.Reader { return strings.NewReader(`{"apiVersion":"v1","kind":"PodList","items":{}}`) }, "does not answer"},
		"broken":       {func() io.Reader { return iotest.ErrReader(io.ErrUnexpectedEOF) }, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(func(context.Context, kcp.ClusterName, *workload.SyncTarget) (*Link, error) {
				return &Link{Server: &url.URL{Scheme: "https", Host: "secret.example.com"}, Through: answer(func(r *http.Request) (*http.Response, error) {
					body := c.body()
					if strings.HasSuffix(r.URL.Path, of.Physical) {
						body = strings.NewReader(namespace)
					}
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body), Request: r}, nil
				})}, nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			call, err := p.begin(ctx, of)
			if err != nil {
				t.Fatal(err)
			}
			_, err = call.list(ctx, metav1.ListOptions{}, func(page []corev1.Pod) (int64, error) { return int64(len(page)), nil })
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %s", err, c.want)
			}
			call.end()
			if p.limits.weights.Held() != 0 || len(p.limits.used) > 0 {
				t.Errorf("%d bytes are held, %v", p.limits.weights.Held(), p.limits.used)
			}
		})
	}
}

// spaces never ends.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Pods are not stored, so the selector of a permission claim cannot be applied to them.
func TestAClaimForSomePodsGivesNone(t *testing.T) {
	some := registry.WithPart(t.Context(), Resource().GroupResource(), membership.NewPart("app=web"))
	if _, err := (&Pods{}).workspace(some, "consumer", "default"); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	if _, err := (&Pods{}).workspace(t.Context(), "consumer", "default"); apierrors.IsForbidden(err) {
		t.Errorf("without a selector: %v", err)
	}
}
