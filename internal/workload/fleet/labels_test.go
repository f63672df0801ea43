package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// TestLabelsOfNamespaces expects that the labels of a namespace select its Placement, that a change of either decides
// anew, and that a PlacementReview agrees.
func TestLabelsOfNamespaces(t *testing.T) {
	_, shop := placing(t)
	decided(t, shop, "no selector", "all", "NoTarget")
	shop.Apply(placement("all", "namespaceSelector: {matchExpressions: [{key: env, operator: In, values: [prod, test]}]}"))
	shop.Apply(placement("staging", "namespaceSelector: {matchLabels: {env: staging}}"))
	for _, step := range []struct{ what, labels, placement, reason string }{
		{"no label", `null`, "", "NoPlacement"},
		{"a label", `{"env":"staging"}`, "staging", "NoTarget"},
		{"another one", `{"env":"prod","team":"a"}`, "all", "NoTarget"},
		{"one that decides nothing", `{"env":"prod","team":"b"}`, "all", "NoTarget"},
	} {
		label(t, shop, "default", step.labels)
		decided(t, shop, step.what, step.placement, step.reason)
	}
	shop.Apply(placement("all", "namespaceSelector: {matchLabels: {env: other}}"))
	shop.Apply(placement("staging", "namespaceSelector: {matchLabels: {env: prod}}"))
	decided(t, shop, "another selector", "staging", "NoTarget")
	shop.Apply(placement("staging", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}"))
	shop.Apply(placement("all", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}"))
	decided(t, shop, "names only", "staging", "NoTarget")
}

// label sets the labels of a namespace besides its name.
func label(t *testing.T, c *kcptest.Cluster, namespace, labels string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":%s}}`, labels)
	_, err := c.Dynamic.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Patch(t.Context(), namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// decided waits until the Deployment web has a decision by a Placement, and expects the same of a review.
func decided(t *testing.T, c *kcptest.Cluster, what, placement, reason string) {
	t.Helper()
	eventually(t, func() error {
		all, err := c.Dynamic.Resource(workload.GroupVersion.WithResource("assignments")).Namespace("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		got := ""
		for _, a := range all.Items {
			by, _, _ := unstructured.NestedString(a.Object, "spec", "placement")
			why, _, _ := unstructured.NestedString(a.Object, "spec", "reason")
			got += by + " " + why
		}
		if placement == "" && strings.HasSuffix(got, " "+reason) { // it keeps what it has, with the Placement that gave it
			return nil
		}
		if got != placement+" "+reason {
			return fmt.Errorf("%s: the decision is %q, want %q", what, got, placement+" "+reason)
		}
		return nil
	})
	of, err := reviewed(t, c, "{}")
	if err != nil {
		t.Fatal(err)
	}
	if of.Placement != placement || of.Reason != reason {
		t.Errorf("%s: the review says %q %q, want %q %q", what, of.Placement, of.Reason, placement, reason)
	}
}
