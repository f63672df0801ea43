package pods

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

func TestSelectsEvents(t *testing.T) {
	s := selectsEvents(&internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie("involvedObject.name=web,involvedObject.namespace=default,involvedObject.uid=u,reason!=x")})
	if s.push.FieldSelector != "involvedObject.name=web,reason!=x" {
		t.Errorf("pushed: %q", s.push.FieldSelector)
	}
	if s := selectsEvents(&internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie("involvedObject.name=db-0.k1k1k1")}); s.push.FieldSelector != "" {
		t.Errorf("a name that only the workspace has is pushed: %q", s.push.FieldSelector)
	}
}

func TestKnown(t *testing.T) {
	of, other := onePart(), onePart()
	other.Key, other.replicas, of.replicas = otherKey, 3, 2
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	of.target.Status.LastSyncerHeartbeatTime = &at
	down := &refusal{"Location does not answer"}
	all := gaps([]*part{of, other}, map[*part]error{of: down, other: down})
	if len(all) != 1 || all[0].replicas != 5 {
		t.Fatalf("%d gaps", len(all))
	}
	report := func(key, namespace, kind, name, status string) workload.TargetStatus {
		r := workload.TargetStatus{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		r.Spec.Key, r.Spec.Workload.Kind, r.Spec.Workload.Name, r.Spec.Reported = key, kind, name, &runtime.RawExtension{Raw: []byte(status)}
		return r
	}
	got := all[0].known([]workload.TargetStatus{
		report(key, "default", "Deployment", "web", `{"replicas":2,"readyReplicas":1}`), report(otherKey, "default", "DaemonSet", "log", `{"desiredNumberScheduled":4,"numberReady":4}`),
		report(key, "default", "Job", "run", `{"active":1}`), report(key, "default", "Service", "web", `{"loadBalancer":{}}`), report(key, "default", "Deployment", "bad", `[`),
		report(key, "other", "Deployment", "not", `{"replicas":1}`), report("third", "default", "Deployment", "not", `{"replicas":1}`),
	})
	if want := "; last known, at 2026-01-02T03:04:05Z: daemonset/log 4 of 4 ready, deployment/web 1 of 2 ready, job/run 1 active"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	later := metav1.NewTime(at.Add(30 * time.Second)) // the target has reported since its heartbeat was written
	newer := report(key, "default", "Deployment", "web", `{"replicas":2,"readyReplicas":2}`)
	newer.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &later}, {Time: &at}, {}}
	if got := all[0].known([]workload.TargetStatus{newer, report(key, "default", "Job", "run", `{"active":1}`)}); !strings.HasPrefix(got, "; last known, at 2026-01-02T03:04:35Z: ") {
		t.Errorf("got %q", got)
	}
	var many []workload.TargetStatus
	for range 8 {
		many = append(many, report(key, "default", "Deployment", "web", `{"replicas":2}`))
	}
	if got := all[0].known(many); !strings.HasSuffix(got, " and 3 more") || all[0].known(nil) != "" {
		t.Errorf("got %q", got)
	}
}
