package endpoints

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// ReconcilePartitionSet makes the Partitions of a PartitionSet: one for each combination of values
// that the selected shards have for the labels in spec.dimensions. It deletes all others of the
// set.
func (x *Endpoints) ReconcilePartitionSet(ctx context.Context, c cluster.Name, name string) error {
	s := &topology.PartitionSet{}
	rev, err := x.store.ReadInto(ctx, x.SetResource.Key(c, "", name), s)
	if err != nil || rev == 0 || s.DeletionTimestamp != nil {
		return err
	}
	before := s.Status.DeepCopy()
	valid := conditions.Condition{Type: topology.PartitionSetValid, Status: metav1.ConditionTrue}
	done := conditions.Condition{Type: topology.PartitionsReady, Status: metav1.ConditionTrue}
	wanted, invalid := divide(s, x.shards())
	var failed error
	if invalid != nil {
		valid.Status, valid.Severity, valid.Reason, valid.Message = metav1.ConditionFalse, conditions.SeverityError, topology.InvalidSelector, invalid.Error()
	} else {
		failed = x.makePartitions(ctx, c, s, wanted)
		s.Status.Count = len(wanted)
	}
	s.Status.Conditions.Set(valid)
	var taken *partitionTakenError
	switch {
	case errors.As(failed, &taken):
		done.Status, done.Severity, done.Reason, done.Message = metav1.ConditionFalse, conditions.SeverityError, topology.ErrorGeneratingPartitions, failed.Error()
	case failed != nil:
		return failed // a retry
	}
	if invalid == nil {
		s.Status.Conditions.Set(done)
	}
	if equality.Semantic.DeepEqual(before, &s.Status) {
		return nil
	}
	stored, err := values.Unstructured(s, topology.GroupVersion.WithKind("PartitionSet"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: x.SetResource, Cluster: c, Object: stored, Expect: rev}})
	return err
}

// divide returns the selector of each Partition of a set by name. Shards that lack a label in
// spec.dimensions are in none.
func divide(s *topology.PartitionSet, shards []labels.Set) (map[string]*metav1.LabelSelector, error) {
	selected, err := metav1.LabelSelectorAsSelector(s.Spec.ShardSelector.LabelSelector())
	if err != nil {
		return nil, fmt.Errorf("spec.shardSelector: %w", err)
	}
	for _, d := range s.Spec.Dimensions {
		if wrong := validation.IsQualifiedName(d); len(wrong) > 0 {
			return nil, fmt.Errorf("spec.dimensions: %q is no key of a label: %s", d, strings.Join(wrong, "; "))
		}
	}
	all := map[string]*metav1.LabelSelector{}
	for _, shard := range shards {
		if !selected.Matches(shard) || slices.ContainsFunc(s.Spec.Dimensions, func(d string) bool { return !shard.Has(d) }) {
			continue
		}
		selector := s.Spec.ShardSelector.LabelSelector()
		var tuple []string
		for _, d := range s.Spec.Dimensions {
			tuple = append(tuple, shard.Get(d))
			if own, ok := selector.MatchLabels[d]; !ok || own == shard.Get(d) {
				selector = metav1.AddLabelToSelector(selector, d, shard.Get(d))
			}
		}
		all[partitionName(s.Name, tuple)] = selector
	}
	return all, nil
}

// partitionName returns <set>-<values>-<hash of them>, as long as a name can be.
func partitionName(set string, tuple []string) string {
	sum := sha256.Sum256([]byte(set + "\n" + strings.Join(tuple, "\n")))
	suffix := "-" + hex.EncodeToString(sum[:])[:8]
	name := set
	for _, value := range tuple {
		name += "-" + strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(value))
	}
	name = name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(suffix))]
	return strings.TrimRight(name, ".-") + suffix
}

// A partitionTakenError means that a Partition of another owner has a name that a set needs.
type partitionTakenError struct{ name string }

func (e *partitionTakenError) Error() string {
	return fmt.Sprintf("the Partition %s exists, and this PartitionSet does not own it; delete it", e.name)
}

// makePartitions creates, changes and deletes Partitions, so that the set owns those that are
// wanted, and no others.
func (x *Endpoints) makePartitions(ctx context.Context, c cluster.Name, s *topology.PartitionSet, wanted map[string]*metav1.LabelSelector) error {
	if err := x.store.Feed().CatchUp(ctx); err != nil { // to know the Partitions of an earlier run
		return err
	}
	for _, p := range x.Partitions.List(c, "") {
		if _, ok := wanted[p.Name]; p.UID == s.UID && !ok {
			if err := x.deletePartition(ctx, c, p.Name); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		p := &topology.Partition{}
		rev, err := x.store.ReadInto(ctx, x.PartitionResource.Key(c, "", name), p)
		if err != nil {
			return err
		}
		if rev == 0 {
			owns := true
			p.ObjectMeta = values.NewMeta("", name)
			p.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: topology.GroupVersion.String(), Kind: "PartitionSet", Name: s.Name, UID: s.UID, Controller: &owns, BlockOwnerDeletion: &owns,
			}}
		} else if owner := metav1.GetControllerOf(p); owner == nil || owner.UID != s.UID {
			return &partitionTakenError{name}
		} else if equality.Semantic.DeepEqual(p.Spec.Selector, wanted[name]) {
			continue
		}
		p.Spec.Selector = wanted[name]
		if err := x.putPartition(ctx, c, p, rev, false); err != nil {
			return err
		}
	}
	return nil
}

// deletePartition deletes a Partition, or marks it as deleted if it has finalizers.
func (x *Endpoints) deletePartition(ctx context.Context, c cluster.Name, name string) error {
	p := &topology.Partition{}
	rev, err := x.store.ReadInto(ctx, x.PartitionResource.Key(c, "", name), p)
	if err != nil || rev == 0 || p.DeletionTimestamp != nil {
		return err
	}
	if len(p.Finalizers) > 0 {
		now := metav1.Now().Rfc3339Copy()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64)
	}
	return x.putPartition(ctx, c, p, rev, len(p.Finalizers) == 0)
}

func (x *Endpoints) putPartition(ctx context.Context, c cluster.Name, p *topology.Partition, rev int64, deleted bool) error {
	stored, err := values.Unstructured(p, topology.GroupVersion.WithKind("Partition"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: x.PartitionResource, Cluster: c, Object: stored, Expect: rev, Delete: deleted}})
	return err
}
