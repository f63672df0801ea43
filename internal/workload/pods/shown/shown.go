// Package shown turns what the API of a physical cluster says about a workspace into what its tenant sees. It hides which
// fields, labels and texts reveal nodes, addresses and namespaces of the physical cluster, how names of objects at several
// targets are told apart, and the form of the resource versions that clients get.
//
// All functions are pure: the package sends no request.
package shown

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// LocationLabel is on every pod that is shown to a tenant.
const LocationLabel = "workload.kcp.io/location"

// suffix is how many characters of the key of a target are in names and resource versions.
const suffix = 6

// An Origin is where the objects of one namespace of a workspace are from: one target.
type Origin struct {
	Namespace string // of the workspace
	Physical  string // the namespace at the target
	Key       string // of the target
	Location  string
	Workloads *Workloads // of the workspace
}

// Workloads are what objects of targets show of the workloads of a workspace.
type Workloads struct {
	// repeated has the StatefulSets that run at several targets, by namespace and name. Their pods
	// have equal names.
	repeated map[[2]string]bool
	// uids has the UIDs of the workloads, by namespace, kind and name.
	uids map[[3]string]types.UID
}

// NewWorkloads returns the workloads of the Assignments of a workspace.
func NewWorkloads(all []workload.Assignment) *Workloads {
	w := &Workloads{repeated: map[[2]string]bool{}, uids: map[[3]string]types.UID{}}
	for i := range all {
		a, of := &all[i], all[i].Spec.Workload
		w.uids[[3]string{a.Namespace, of.Kind, of.Name}] = types.UID(of.UID)
		if of.Group == "apps" && of.Resource == "statefulsets" && len(a.Spec.Targets) > 1 {
			w.repeated[[2]string{a.Namespace, of.Name}] = true
		}
	}
	return w
}

// Name returns the name of a pod in the workspace. Pods of a StatefulSet that runs at several
// targets have equal names there, and get the key of the target.
func (o *Origin) Name(pod *corev1.Pod) string {
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "StatefulSet" && o.Workloads.repeated[[2]string{o.Namespace, owner.Name}] {
			return o.suffixed(pod.Name)
		}
	}
	return pod.Name
}

// PhysicalName returns the name that a pod of the workspace has at the target, if it is there.
func (o *Origin) PhysicalName(name string) string {
	if stem, ok := o.cut(name); ok && len(o.Workloads.repeated) > 0 {
		return stem
	}
	return name
}

// suffixed returns a name with the key of the target.
func (o *Origin) suffixed(name string) string { return name + "." + o.Key[:suffix] }

// cut returns a name without the key of the target, and whether the name has it.
func (o *Origin) cut(name string) (string, bool) {
	return strings.CutSuffix(name, "."+o.Key[:suffix])
}

// Text returns a text of the target without addresses, and with the namespace of the workspace.
func (o *Origin) Text(text string) string {
	return HideAddresses(strings.ReplaceAll(text, o.Physical, o.Namespace))
}

var addresses = regexp.MustCompile(`(?i)https?://[^\s"']+|\[?(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}\]?(?::\d+)?|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b`)

const hiddenText = "(hidden)"

// hider returns a function that removes the node of a pod, further nodes, and addresses, from a text.
func hider(pod *corev1.Pod, nodes ...string) func(string) string {
	names := append(nodes, pod.Spec.NodeName, pod.Status.NominatedNodeName, pod.Status.HostIP)
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" })
	return func(text string) string {
		for _, n := range names {
			text = strings.ReplaceAll(text, n, hiddenText)
		}
		return HideAddresses(text)
	}
}

// HideAddresses removes addresses and URLs from a text.
func HideAddresses(text string) string {
	if text == "" {
		return ""
	}
	return addresses.ReplaceAllString(text, hiddenText)
}
