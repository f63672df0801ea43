package shown

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An event of a target is about the object in the workspace, and tells no node.
func TestShowEvent(t *testing.T) {
	of := oneOrigin()
	of.Workloads.uids[[3]string{"default", "Deployment", "web"}] = "own"
	of.Workloads.repeated[[2]string{"default", "db"}] = true
	physical := of.Physical
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
		seen := &Nodes{}
		seen.See(event("Pod", "web-9", "Successfully assigned x/web-9 to secret-9"))
		e := event("Pod", "web-1", message)
		seen.See(e)
		shown := of.Event(e, "v", seen)
		text, err := json.Marshal(shown)
		if err != nil || shown.Message != want || strings.Contains(string(text), "secret") || strings.Contains(string(text), physical) || shown.InvolvedObject.UID != "there" || shown.Name != "x."+key[:suffix] {
			t.Errorf("%s: got %s, %v", message, text, err)
		}
	}
	if shown := of.Event(event("Deployment", "web", ""), "v", &Nodes{}); shown.InvolvedObject.UID != "own" || shown.InvolvedObject.ResourceVersion != "" || shown.Source.Host != "east" {
		t.Errorf("of a workload: %+v", shown)
	}
	if shown := of.Event(event("Pod", "db-0", ""), "v", &Nodes{}); shown.InvolvedObject.Name != "db-0."+key[:suffix] {
		t.Errorf("of a pod with a suffix: %s", shown.InvolvedObject.Name)
	}
	foreign := event("Pod", "web-1", "")
	foreign.InvolvedObject.Namespace = "kube-system"
	if of.Event(foreign, "v", &Nodes{}) != nil {
		t.Error("an event about another namespace is shown")
	}
	foreign = event("Pod", "web-1", "")
	foreign.Namespace = "kcp-other"
	if of.Event(foreign, "v", &Nodes{}) != nil {
		t.Error("an event of another namespace is shown")
	}
}
