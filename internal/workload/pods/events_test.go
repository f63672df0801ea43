package pods

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// An event of a target is about the object in the workspace, and tells no node.
func TestShowEvent(t *testing.T) {
	of := onePart()
	of.workspace.uids[[3]string{"default", "Deployment", "web"}] = "own"
	of.workspace.repeated[[2]string{"default", "db"}] = true
	physical := of.locator().Physical()
	event := func(kind, name, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: "x", Namespace: physical, UID: "u", Labels: map[string]string{"a": "secret"}, Annotations: map[string]string{"a": "secret"}},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: physical, Name: name, UID: "there", ResourceVersion: "99"},
			Message:        message, Source: corev1.EventSource{Component: "kubelet", Host: "secret-1"}, ReportingInstance: "secret-1.example.com",
			Related: &corev1.ObjectReference{Kind: "Node", Name: "secret-1"},
		}
	}
	for message, want := range map[string]string{
		"Successfully assigned " + physical + "/web-1 to secret-9":                          "Successfully assigned default/web-1 to (hidden)",
		"secret-1, secret-1.example.com and (secret-9): Back-off 10s":                       "(hidden), (hidden) and ((hidden)): Back-off 10s",
		`attached to node "secret-7" at 10.0.0.1:443`:                                       `attached to node "(hidden)" at (hidden)`,
		"0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/x: }": "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/x: }",
		"Get https://secret-1:10250/healthz":                                                "Get (hidden)",
	} {
		seen := &nodes{}
		seen.see(event("Pod", "web-9", "Successfully assigned x/web-9 to secret-9"))
		e := event("Pod", "web-1", message)
		seen.see(e)
		shown := of.shownEvent(e, "v", seen)
		text, err := json.Marshal(shown)
		if err != nil || shown.Message != want || strings.Contains(string(text), "secret") || strings.Contains(string(text), physical) || shown.InvolvedObject.UID != "there" || shown.Name != "x."+key[:suffix] {
			t.Errorf("%s: got %s, %v", message, text, err)
		}
	}
	if shown := of.shownEvent(event("Deployment", "web", ""), "v", &nodes{}); shown.InvolvedObject.UID != "own" || shown.InvolvedObject.ResourceVersion != "" || shown.Source.Host != "east" {
		t.Errorf("of a workload: %+v", shown)
	}
	if shown := of.shownEvent(event("Pod", "db-0", ""), "v", &nodes{}); shown.InvolvedObject.Name != "db-0."+key[:suffix] {
		t.Errorf("of a pod with a suffix: %s", shown.InvolvedObject.Name)
	}
	foreign := event("Pod", "web-1", "")
	foreign.InvolvedObject.Namespace = "kube-system"
	if of.shownEvent(foreign, "v", &nodes{}) != nil {
		t.Error("an event about another namespace is shown")
	}
	foreign = event("Pod", "web-1", "")
	foreign.Namespace = "kcp-other"
	if of.shownEvent(foreign, "v", &nodes{}) != nil {
		t.Error("an event of another namespace is shown")
	}
}

func TestEventVersions(t *testing.T) {
	for text, want := range map[string]string{"": "", "0": "", "17": "17", "STORED-17": "17", "STORED-17.k1k1k1-5": "17", "k1k1k1-5": ""} {
		v, err := parseEventVersions(text)
		if err != nil || v.stored() != want {
			t.Errorf("%q: stored %q, %v", text, v.stored(), err)
		}
	}
	if _, err := parseEventVersions("nonsense"); err == nil {
		t.Error("nonsense is accepted")
	}
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
	other.key, other.replicas, of.replicas = otherKey, 3, 2
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
