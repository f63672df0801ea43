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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/workload/engine"
)

const key, otherKey = "k1k1k1k1k1k1k1k1", "k2k2k2k2k2k2k2k2"

func onePart() *part {
	w := &workspace{cluster: "shop", compute: "compute", repeated: map[[2]string]bool{}, uids: map[[3]string]types.UID{}}
	return &part{workspace: w, namespace: "default", key: key, location: "east", target: &workload.SyncTarget{}}
}

// What a target says about its nodes is not shown.
func TestShow(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", Namespace: "kcp-x", Labels: map[string]string{"app": "web", "topology.kubernetes.io/zone": "secret"},
			Annotations: map[string]string{"own": "1", "cni": "secret"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{}},"f:annotations":{"f:own":{}},"f:ownerReferences":{}},"f:spec":{"f:containers":{}}}`)},
				{Manager: "cni", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cni":{}},"f:labels":{"f:topology.kubernetes.io/zone":{}}}}`)},
				{Manager: "bad", FieldsV1: metav1.NewFieldsV1(`{`)},
			},
		},
		Spec: corev1.PodSpec{NodeName: "secret-node", Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"secret-node"}}}},
				{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"secret-planned"}}},
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "wanted", Operator: corev1.NodeSelectorOpExists}}}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"secret-node"}}}}}},
		}}},
		Status: corev1.PodStatus{
			HostIP: "192.0.2.1", HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}, PodIP: "10.0.0.1", NominatedNodeName: "secret-other", Message: "on secret-node, not on secret-planned",
			Conditions:        []corev1.PodCondition{{Message: "secret-node is low, see https://10.1.1.1:10250/secret"}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Message: "dial tcp [fd00::1:2:3]:443 from secret-node via 192.0.2.1: Back-off 10s at 12:30:45"}}}},
		},
	}
	of := onePart()
	of.show(pod)
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"secret", "192.0.2.1", "10.1.1.1", "fd00", "kcp-x", "cni"} {
		if strings.Contains(string(text), hidden) {
			t.Errorf("%q is in %s", hidden, text)
		}
	}
	for _, shown := range []string{`"namespace":"default"`, `"nodeName":"east"`, `"own":"1"`, `"app":"web"`, `"nodeSelectorTerms":[{"matchExpressions":[{"key":"wanted"`, LocationLabel, "10.0.0.1", "Back-off 10s at 12:30:45"} {
		if !strings.Contains(string(text), shown) {
			t.Errorf("%q is not in %s", shown, text)
		}
	}
	host := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}, Status: corev1.PodStatus{HostIP: "192.0.2.1", PodIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}}
	if of.show(host); host.Status.PodIP != "" || host.Status.PodIPs != nil || host.Spec.NodeName != "" {
		t.Errorf("a pod with the address of its node: %+v", host.Status)
	}
}

// Pods of a StatefulSet at several targets have different names, in both directions.
func TestNames(t *testing.T) {
	of := onePart()
	owned := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db"}}}}
	if got := of.nameOf(owned); got != "db-0" {
		t.Errorf("at one target: %s", got)
	}
	of.workspace.repeated[[2]string{"default", "db"}] = true
	got := of.nameOf(owned)
	if got != "db-0."+key[:suffix] || of.physicalName(got) != "db-0" {
		t.Errorf("at several: %s, %s", got, of.physicalName(got))
	}
	other := onePart()
	other.key = otherKey
	if other.nameOf(owned) == got || other.physicalName(got) != got {
		t.Error("two targets have the same name")
	}
}

func TestParts(t *testing.T) {
	w := &workspace{cluster: "shop", compute: "compute", repeated: map[[2]string]bool{}, uids: map[[3]string]types.UID{}}
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
	if len(w.parts) != 4 || w.parts[0].namespace != "m" || w.repeated[[2]string{"n", "x"}] || !w.repeated[[2]string{"m", "x"}] {
		t.Errorf("%d parts, repeated %v", len(w.parts), w.repeated)
	}
	for _, p := range w.parts {
		if p.namespace == "n" && p.key == a && p.replicas != 4 {
			t.Errorf("%d replicas", p.replicas)
		}
	}
}

// Targets select by what means the same there, and the pods that they return are checked again.
func TestSelects(t *testing.T) {
	label, err := labels.Parse("app=web," + LocationLabel + " in (east)")
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
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default", Labels: map[string]string{"app": "web", LocationLabel: "east"}},
		Spec: core.PodSpec{NodeName: "east"}, Status: core.PodStatus{Phase: core.PodRunning, PodIPs: []core.PodIP{{IP: "1.2.3.4"}}}}
	if ok, err := s.Matches(pod); !ok || err != nil {
		t.Errorf("a pod that is selected: %v", err)
	}
	pod.Labels[LocationLabel] = "west"
	if ok, err := s.Matches(pod); ok || err != nil {
		t.Errorf("a pod of another Location: %v", err)
	}
}

func TestVersions(t *testing.T) {
	v := versions{}
	v.add(key, "20")
	v.add(key, "10")
	v.add(otherKey, "7")
	v.add(otherKey, "no number")
	text := v.String()
	if text != "k1k1k1-10.k2k2k2-7" {
		t.Error(text)
	}
	if (versions{}).String() != nowhere {
		t.Error("an empty version means any")
	}
	for _, ok := range []string{"", "0", "1", text} {
		if _, err := parseVersions(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"2", "-", "k1-1", "k1k1k1-", "k1k1k1-0", "k1k1k1--1", text + ".", strings.Repeat(text+".", mostVersions) + text} {
		if _, err := parseVersions(bad); err == nil {
			t.Errorf("%.30q is accepted", bad)
		}
	}
}

func FuzzVersions(f *testing.F) {
	f.Add("k1k1k1-10.k2k2k2-7")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseVersions(text)
		if err != nil {
			return
		}
		if again, err := parseVersions(v.String()); err != nil || again.String() != v.String() {
			t.Errorf("%q: %v, %v", text, again, err)
		}
	})
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
		of.locator().Physical(), workload.OwnerLabel, of.key, workload.LocatorAnnotation, locator)
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
					if strings.HasSuffix(r.URL.Path, of.locator().Physical()) {
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
