package tenancy

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// DeriveCluster has the metadata of a LogicalCluster that is about to be stored say
// once more what is in its status, so that it is selected by that: its phase, and
// what is still to finish. Terminators keep it, too, until they have. It is a
// [store.WriteHook]: whoever writes the status need not think of it, and nobody can
// make labels that say anything else.
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

// DeriveWorkspace is [DeriveCluster] for Workspaces, whose phase alone they are
// selected by.
func DeriveWorkspace(u *unstructured.Unstructured) { setLabels(u, derivePhase(u)) }

// derivePhase returns the labels of an object with that of its phase.
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
