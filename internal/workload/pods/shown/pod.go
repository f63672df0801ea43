package shown

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
)

// Pod returns a pod of a target as the tenant sees it, in the internal version. It changes pod as [Origin.Show] does.
func (o *Origin) Pod(pod *corev1.Pod, version string) (*core.Pod, error) {
	o.Show(pod)
	pod.ResourceVersion = version
	out := &core.Pod{}
	return out, corev1conversion.Convert_v1_Pod_To_core_Pod(pod, out, nil)
}

// Show changes a pod of a target to what the tenant sees: a pod of the workspace that runs at a
// Location. Everything that reveals the physical cluster or its place is removed.
func (o *Origin) Show(pod *corev1.Pod) {
	pod.Name = o.Name(pod)
	hideMetadata(pod)
	pod.Namespace = o.Namespace
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if len(validation.IsValidLabelValue(o.Location)) == 0 {
		pod.Labels[LocationLabel] = o.Location
	}
	hidden := hider(pod, hideAffinity(pod.Spec.Affinity)...)
	if pod.Spec.NodeName != "" {
		pod.Spec.NodeName = o.Location
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
