package fleet_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// reviewed returns what a review says of the only workload of a workspace.
func reviewed(t *testing.T, c *kcptest.Cluster, assume string) (scheduling.ReviewedWorkload, error) {
	t.Helper()
	var assumed map[string]any
	if err := yaml.Unmarshal([]byte(assume), &assumed); err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scheduling.GroupVersion.String(), "kind": "PlacementReview", "metadata": map[string]any{"name": "x"},
		"spec": map[string]any{"assume": assumed}}}
	answer, err := c.Dynamic.Resource(scheduling.GroupVersion.WithResource("placementreviews")).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		return scheduling.ReviewedWorkload{}, err
	}
	got := &scheduling.PlacementReview{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, got); err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Workloads) != 1 {
		t.Fatalf("the review has %+v", got.Status)
	}
	return got.Status.Workloads[0], nil
}

// TestAddedClusters asks where a Deployment that no physical cluster takes would run if there were more.
func TestAddedClusters(t *testing.T) {
	c, shop := placing(t)
	c.Apply(`{apiVersion: scheduling.kcp.io/v1alpha1, kind: Location, metadata: {name: default}, spec: {description: all}}`)
	decided(t, shop, "one that is not ready", "all", "NoTarget")
	of, err := reviewed(t, shop, `added: [{location: default, clusters: 2}]`)
	if err != nil {
		t.Fatal(err)
	}
	replicas, clusters := int32(0), int32(0)
	for _, l := range of.Locations {
		if l.Added {
			clusters += l.Clusters
			replicas += ptr.Deref(l.NextReplicas, 0)
		}
		if !l.Added && l.NextPhase != "" || l.Target != "" && l.Added {
			t.Errorf("a location is %+v", l)
		}
	}
	if of.Reason != "" || clusters != 2 || replicas != *of.Replicas {
		t.Errorf("the answer is %+v", of)
	}
	if of, err := reviewed(t, shop, `added: [{location: default}]`); err != nil || of.Reason != "" {
		t.Errorf("one cluster: %+v, %v", of, err)
	}
	for assume, want := range map[string]string{
		`added: [{location: moon}]`:                         `there is no location "moon"`,
		`added: [{location: default, clusters: 65}]`:        "their sum 64 at most",
		`added: [{location: default, clusters: -1}]`:        "all numbers must be positive",
		`added: [{location: default, clusters: 0}]`:         "all numbers must be positive",
		`added: [{location: default}, {location: default}]`: "Duplicate value",
	} {
		if _, err := reviewed(t, shop, assume); err == nil || !strings.Contains(err.Error(), want) || !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", assume, err)
		}
	}
	decided(t, shop, "nothing was added", "all", "NoTarget")
}
