package shown

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

const key, otherKey = "k1k1k1k1k1k1k1k1", "k2k2k2k2k2k2k2k2"

func oneOrigin() *Origin {
	return &Origin{Namespace: "default", Physical: "kcp-x", Key: key, Location: "east", Workloads: NewWorkloads(nil)}
}

// Pods show no fields about the nodes of a target.
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
	of := oneOrigin()
	of.Show(pod)
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
	if of.Show(host); host.Status.PodIP != "" || host.Status.PodIPs != nil || host.Spec.NodeName != "" {
		t.Errorf("a pod with the address of its node: %+v", host.Status)
	}
}

// Pods of a StatefulSet at several targets have different names, in both directions.
func TestNames(t *testing.T) {
	of := oneOrigin()
	owned := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db"}}}}
	if got := of.Name(owned); got != "db-0" {
		t.Errorf("at one target: %s", got)
	}
	of.Workloads.repeated[[2]string{"default", "db"}] = true
	got := of.Name(owned)
	if got != "db-0."+key[:suffix] || of.PhysicalName(got) != "db-0" {
		t.Errorf("at several: %s, %s", got, of.PhysicalName(got))
	}
	other := oneOrigin()
	other.Key = otherKey
	if other.Name(owned) == got || other.PhysicalName(got) != got {
		t.Error("two targets have the same name")
	}
}

// Only a StatefulSet that several targets run has names with a suffix.
func TestRepeated(t *testing.T) {
	assigned := func(namespace, resource string, keys ...string) workload.Assignment {
		a := workload.Assignment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		a.Spec.Workload = workload.WorkloadReference{Group: "apps", Resource: resource, Name: "x"}
		for _, k := range keys {
			a.Spec.Targets = append(a.Spec.Targets, workload.AssignedTarget{Key: k})
		}
		return a
	}
	w := NewWorkloads([]workload.Assignment{assigned("n", "deployments", key, otherKey), assigned("n", "statefulsets", key), assigned("m", "statefulsets", key, otherKey)})
	if w.repeated[[2]string{"n", "x"}] || !w.repeated[[2]string{"m", "x"}] {
		t.Errorf("repeated: %v", w.repeated)
	}
}
