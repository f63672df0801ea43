package pods

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// LocationLabel is on every pod that is shown to a tenant.
const LocationLabel = "workload.kcp.io/location"

// suffix is how many characters of the key of a target are in names and resource versions.
const suffix = 6

// nameOf returns the name of a pod in the workspace. Pods of a StatefulSet that runs at several
// targets have equal names there, and get the key of the target.
func (p *part) nameOf(pod *corev1.Pod) string {
	for _, o := range pod.OwnerReferences {
		if o.Kind == "StatefulSet" && p.workspace.repeated[[2]string{p.namespace, o.Name}] {
			return pod.Name + "." + p.key[:suffix]
		}
	}
	return pod.Name
}

// physicalName returns the name that a pod of the workspace has at the target, if it is there.
func (p *part) physicalName(name string) string {
	if stem, ok := strings.CutSuffix(name, "."+p.key[:suffix]); ok && len(p.workspace.repeated) > 0 {
		return stem
	}
	return name
}

// show changes a pod of a target to what the tenant sees: a pod of the workspace that runs at a
// Location. Everything that reveals the physical cluster or its place is removed.
func (p *part) show(pod *corev1.Pod) {
	pod.Name = p.nameOf(pod)
	hideMetadata(pod)
	pod.Namespace = p.namespace
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if len(validation.IsValidLabelValue(p.location)) == 0 {
		pod.Labels[LocationLabel] = p.location
	}
	hidden := hider(pod, hideAffinity(pod.Spec.Affinity)...)
	if pod.Spec.NodeName != "" {
		pod.Spec.NodeName = p.location
	}
	s := &pod.Status
	if pod.Spec.HostNetwork || s.HostIP != "" && s.PodIP == s.HostIP {
		s.PodIP, s.PodIPs = "", nil
	}
	s.HostIP, s.HostIPs, s.NominatedNodeName = "", nil, ""
	s.Message = hidden(s.Message)
	for i := range s.Conditions {
		s.Conditions[i].Message = hidden(s.Conditions[i].Message)
	}
	for _, all := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range all {
			hideStates(&all[i], hidden)
		}
	}
}

// hideAffinity removes the fields by which the affinity of a pod selects nodes: they are names. The controller of
// DaemonSets puts them there. It returns the names.
func hideAffinity(of *corev1.Affinity) (names []string) {
	if of == nil || of.NodeAffinity == nil {
		return nil
	}
	hide := func(term *corev1.NodeSelectorTerm) {
		for _, f := range term.MatchFields {
			names = append(names, f.Values...)
		}
		term.MatchFields = nil
	}
	a := of.NodeAffinity
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		for i := range r.NodeSelectorTerms {
			hide(&r.NodeSelectorTerms[i])
		}
		r.NodeSelectorTerms = slices.DeleteFunc(r.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return len(t.MatchExpressions) == 0 })
		if len(r.NodeSelectorTerms) == 0 {
			a.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		hide(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
	return names
}

func hideStates(s *corev1.ContainerStatus, hidden func(string) string) {
	for _, of := range []*corev1.ContainerState{&s.State, &s.LastTerminationState} {
		if of.Waiting != nil {
			of.Waiting.Message = hidden(of.Waiting.Message)
		}
		// The message of a container that ended is its own.
	}
}

// hideMetadata removes the labels and annotations that the creator of a pod did not set: those of
// agents of nodes, networks and clouds reveal the physical cluster.
func hideMetadata(pod *corev1.Pod) {
	labels, annotations, known := created(pod)
	if known {
		maps.DeleteFunc(pod.Labels, func(k, _ string) bool { return !labels[k] })
	}
	maps.DeleteFunc(pod.Annotations, func(k, _ string) bool { return !annotations[k] })
	pod.ManagedFields = nil
}

// created returns the labels and annotations that the creator of a pod set. known is false if the
// pod does not show them.
func created(pod *corev1.Pod) (labels, annotations map[string]bool, known bool) {
	labels, annotations = map[string]bool{}, map[string]bool{}
	for _, m := range pod.ManagedFields {
		if m.FieldsV1 == nil || m.Subresource != "" {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels        map[string]json.RawMessage `json:"f:labels"`
				Annotations   map[string]json.RawMessage `json:"f:annotations"`
				Owners        json.RawMessage            `json:"f:ownerReferences"`
				GeneratedName json.RawMessage            `json:"f:generateName"`
			} `json:"f:metadata"`
			Spec struct {
				Containers json.RawMessage `json:"f:containers"`
			} `json:"f:spec"`
		}
		if json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil || fields.Metadata.Owners == nil && fields.Spec.Containers == nil {
			continue
		}
		known = true
		for _, of := range []struct {
			from map[string]json.RawMessage
			to   map[string]bool
		}{{fields.Metadata.Labels, labels}, {fields.Metadata.Annotations, annotations}} {
			for k := range of.from {
				if name, ok := strings.CutPrefix(k, "f:"); ok {
					of.to[name] = true
				}
			}
		}
	}
	return labels, annotations, known
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
		return hideAddresses(text)
	}
}

// hideAddresses removes addresses and URLs from a text.
func hideAddresses(text string) string {
	if text == "" {
		return ""
	}
	return addresses.ReplaceAllString(text, hiddenText)
}
