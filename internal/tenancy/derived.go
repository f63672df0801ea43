package tenancy

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// DeriveCluster sets the labels of a LogicalCluster from its status: its phase, and its
// unfinished initializers and terminators. Unfinished terminators also add a finalizer. It
// is a [store.WriteHook], so these labels always match the status.
func DeriveCluster(u *unstructured.Unstructured) {
	initializers, terminators := listOf(u, "initializers"), listOf(u, "terminators")
	labels := derivePhase(u)
	for key := range labels {
		if strings.HasPrefix(key, core.InitializerLabelPrefix) || strings.HasPrefix(key, core.TerminatorLabelPrefix) {
			delete(labels, key)
		}
	}
	for _, i := range initializers {
		key, value := core.Initializer(i).Label()
		labels[key] = value
	}
	for _, t := range terminators {
		key, value := core.Terminator(t).Label()
		labels[key] = value
	}
	setLabels(u, labels)
	kept := u.GetFinalizers()
	switch has := slices.Contains(kept, core.TerminatorsFinalizer); {
	case has && len(terminators) == 0:
		u.SetFinalizers(slices.DeleteFunc(slices.Clone(kept), func(f string) bool { return f == core.TerminatorsFinalizer }))
	case !has && len(terminators) > 0:
		u.SetFinalizers(append(slices.Clone(kept), core.TerminatorsFinalizer))
	}
}

// DeriveWorkspace is [DeriveCluster] for Workspaces. They have the label of their phase
// only.
func DeriveWorkspace(u *unstructured.Unstructured) { setLabels(u, derivePhase(u)) }

// derivePhase returns the labels of an object, with the label of its phase updated.
func derivePhase(u *unstructured.Unstructured) map[string]string {
	labels := u.GetLabels() // a copy
	if labels == nil {
		labels = map[string]string{}
	}
	phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
	if phase == "" {
		delete(labels, core.PhaseLabel)
	} else {
		labels[core.PhaseLabel] = phase
	}
	return labels
}

func setLabels(u *unstructured.Unstructured, labels map[string]string) {
	if !maps.Equal(labels, u.GetLabels()) {
		u.SetLabels(labels)
	}
}

// listOf returns a list of strings in the status of an object.
func listOf(u *unstructured.Unstructured, field string) []string {
	all, _, _ := unstructured.NestedStringSlice(u.Object, "status", field)
	return all
}
