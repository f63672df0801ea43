package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	shardPartitions = schema.GroupVersionResource{Group: "topology.kcp.io", Version: "v1alpha1", Resource: "partitions"}
	partitionSets   = schema.GroupVersionResource{Group: "topology.kcp.io", Version: "v1alpha1", Resource: "partitionsets"}
)

func partitionSet(name, spec string) *unstructured.Unstructured {
	return decoded(`{apiVersion: topology.kcp.io/v1alpha1, kind: PartitionSet, metadata: {name: "%s"}, spec: %s}`, name, spec)
}

func partition(name, spec string) *unstructured.Unstructured {
	return decoded(`{apiVersion: topology.kcp.io/v1alpha1, kind: Partition, metadata: {name: "%s"}, spec: %s}`, name, spec)
}

// owned returns the only Partition of a set, once it is as wanted.
func (c *tenant) owned(set string, count int64) *unstructured.Unstructured {
	c.t.Helper()
	s := c.await(partitionSets, "", set, func(o *unstructured.Unstructured) bool {
		n, _, _ := unstructured.NestedInt64(o.Object, "status", "count")
		return n == count && conditionOf(o, "PartitionsReady") == "True" && conditionOf(o, "PartitionSetValid") == "True"
	})
	var found *unstructured.Unstructured
	for _, p := range must(c.any.Resource(shardPartitions).List(c.t.Context(), metav1.ListOptions{}))(c.t).Items {
		if owner := metav1.GetControllerOf(&p); owner != nil && owner.UID == s.GetUID() {
			if found != nil {
				c.t.Fatalf("%s and %s are of one set", found.GetName(), p.GetName())
			}
			found = &p
		}
	}
	if found == nil && count > 0 {
		c.t.Fatalf("the set %s has no Partition", set)
	}
	return found
}

// TestPartitionSets shows the Partitions of a set: how they are named and divided, and that they
// are restored and deleted.
func TestPartitionSets(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.create(partitionSets, partitionSet("shards", `{dimensions: [name], shardSelector: {matchExpressions: [{key: name, operator: Exists}]}}`))
	made := c.owned("shards", 1)
	if !strings.HasPrefix(made.GetName(), "shards-root-") || text(made, "spec", "selector", "matchLabels", "name") != "root" {
		t.Errorf("Partition %v", made.Object)
	}
	must(c.any.Resource(shardPartitions).Patch(t.Context(), made.GetName(), types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"name":"other"}}}}`), metav1.PatchOptions{}))(t)
	c.await(shardPartitions, "", made.GetName(), func(o *unstructured.Unstructured) bool {
		return text(o, "spec", "selector", "matchLabels", "name") == "root"
	})
	if err := c.any.Resource(shardPartitions).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(shardPartitions, "", made.GetName(), func(o *unstructured.Unstructured) bool { return o != nil && o.GetUID() != made.GetUID() })

	must(c.any.Resource(partitionSets).Patch(t.Context(), "shards", types.MergePatchType, []byte(`{"spec":{"dimensions":["region"]}}`), metav1.PatchOptions{}))(t)
	if p := c.owned("shards", 0); p != nil {
		t.Errorf("no shard has a region, and there is %v", p.Object)
	}
	must(c.any.Resource(partitionSets).Patch(t.Context(), "shards", types.MergePatchType, []byte(`{"spec":{"dimensions":["no key"]}}`), metav1.PatchOptions{}))(t)
	c.await(partitionSets, "", "shards", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "PartitionSetValid") == "False InvalidSelector"
	})
	c.create(partitionSets, partitionSet("all", `{}`))
	if p := c.owned("all", 1); !strings.HasPrefix(p.GetName(), "all-") {
		t.Errorf("without dimensions: %v", p.Object)
	}
	c.create(partitionSets, partitionSet("other", `{shardSelector: {matchLabels: {name: other}}}`))
	c.owned("other", 0)
	if err := c.any.Resource(partitionSets).Delete(t.Context(), "all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitGone(shardPartitions, "all-")
}

// awaitGone waits until no object has a name with a prefix.
func (c *tenant) awaitGone(r schema.GroupVersionResource, prefix string) {
	c.t.Helper()
	w := must(c.any.Resource(r).Watch(c.t.Context(), metav1.ListOptions{}))(c.t) // begins with all objects
	defer w.Stop()
	for {
		left := 0
		for _, o := range must(c.any.Resource(r).List(c.t.Context(), metav1.ListOptions{}))(c.t).Items {
			if strings.HasPrefix(o.GetName(), prefix) {
				left++
			}
		}
		if left == 0 {
			return
		}
		next(c.t, w)
	}
}

// TestHostilePartitions shows that a set leaves the Partitions of others alone, and that users
// write neither its status nor a selector that means nothing.
func TestHostilePartitions(t *testing.T) {
	t.Parallel()
	c, stranger := newTenant(t), newTenant(t)
	c.create(partitionSets, partitionSet("mine", `{dimensions: [name]}`))
	name := c.owned("mine", 1).GetName()
	stranger.create(shardPartitions, partition(name, `{}`))
	stranger.create(partitionSets, partitionSet("mine", `{dimensions: [name]}`))
	stranger.await(partitionSets, "", "mine", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "PartitionsReady") == "False ErrorGeneratingPartitions"
	})
	if err := stranger.any.Resource(shardPartitions).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stranger.owned("mine", 1)
	if _, err := c.any.Resource(shardPartitions).Create(t.Context(), partition("bad", `{selector: {matchExpressions: [{key: a, operator: Like}]}}`), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a selector with an operator that does not exist: %v", err)
	}
}

// TestSlicesOfPartitions shows that a slice has endpoints only for shards of its Partition.
func TestSlicesOfPartitions(t *testing.T) {
	t.Parallel()
	p, c := exporter(t), newTenant(t)
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	slice := func(name, partition string) *unstructured.Unstructured {
		return decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportEndpointSlice, metadata: {name: %s}, spec: {export: {name: widgets}, partition: %s}}`, name, partition)
	}
	p.create(apiSlices, slice("here", "here"))
	p.await(apiSlices, "", "here", func(o *unstructured.Unstructured) bool {
		_, has, _ := unstructured.NestedSlice(o.Object, "status", "endpoints")
		return conditionOf(o, "PartitionValid") == "False PartitionInvalidReference" && !has
	})
	p.create(shardPartitions, partition("here", `{selector: {matchLabels: {name: root}}}`))
	p.await(apiSlices, "", "here", func(o *unstructured.Unstructured) bool {
		endpoints, _, _ := unstructured.NestedSlice(o.Object, "status", "endpoints")
		return conditionOf(o, "PartitionValid") == "True" && text(o, "status", "shardSelector") == "name=root" && len(endpoints) == 1
	})
	must(p.any.Resource(shardPartitions).Patch(t.Context(), "here", types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"name":"elsewhere"}}}}`), metav1.PatchOptions{}))(t)
	p.await(apiSlices, "", "here", func(o *unstructured.Unstructured) bool {
		_, has, _ := unstructured.NestedSlice(o.Object, "status", "endpoints")
		return text(o, "status", "shardSelector") == "name=elsewhere" && !has
	})
}
