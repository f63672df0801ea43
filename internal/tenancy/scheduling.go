package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// A Host is the decoded part of a Shard.
type Host struct {
	Labels labels.Set
	// Region is a label that workspaces copy.
	Region string
	// Unschedulable is true if no workspace is placed on the shard.
	Unschedulable bool
}

// ShardResource returns the resource of Shards of an export with that identity.
func ShardResource(identity string) keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: core.GroupVersion.Group, Resource: "shards"}, identity)
}

// NewShards returns the Shards in the store, whose change feed must not have started.
func NewShards(s *store.Store, r keys.Resource) *feed.Table[Host] {
	return feed.NewCustomTable(s.Feed(), r, func(m *metav1.PartialObjectMetadata) (Host, error) {
		_, unschedulable := m.Annotations[core.UnschedulableAnnotation]
		return Host{Labels: m.Labels, Region: m.Labels[tenancyapi.RegionLabel], Unschedulable: unschedulable}, nil
	})
}

// host returns the shard for a new Workspace, and whether it may be placed there. There is no
// other shard than that of this server.
func (w *Workspaces) host(ws *tenancyapi.Workspace) (Host, bool) {
	h, ok := w.Shards.Get(cluster.Root, "", string(w.Shard))
	return h, ok && !h.Unschedulable && selects(ws, h.Labels)
}

// Labels returns the labels of the shard of this server.
func (w *Workspaces) Labels() labels.Set {
	h, _ := w.Shards.Get(cluster.Root, "", string(w.Shard))
	return h.Labels
}

// selects reports whether the selector of a Workspace matches the labels of a shard.
func selects(ws *tenancyapi.Workspace, of labels.Set) bool {
	if ws.Spec.Location == nil || ws.Spec.Location.Selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(ws.Spec.Location.Selector)
	return err == nil && s.Matches(of)
}

// unschedulable returns the condition of a Workspace that no shard may host.
func unschedulable(ws *tenancyapi.Workspace) conditions.Condition {
	c := conditions.Condition{
		Type: tenancyapi.WorkspaceScheduled, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: tenancyapi.Unschedulable,
		Message: "No shard accepts new workspaces; remove the annotation " + core.UnschedulableAnnotation + " from one.",
	}
	if ws.Spec.Location != nil && ws.Spec.Location.Selector != nil {
		c.Message = fmt.Sprintf("No shard that accepts new workspaces matches spec.location.selector %q; label one, or create the workspace without the selector.", metav1.FormatLabelSelector(ws.Spec.Location.Selector))
	}
	return c
}

// createUnscheduled stores a new Workspace that no shard may host. It has no cluster until
// [Workspaces.Schedule] places it.
func (w *Workspaces) createUnscheduled(ctx context.Context, parent cluster.Name, ws *tenancyapi.Workspace, obj *unstructured.Unstructured) error {
	child := ws.DeepCopy()
	child.Status.Phase = core.PhaseScheduling
	setLabel(&child.ObjectMeta, core.PhaseLabel, string(core.PhaseScheduling))
	child.Status.Conditions.Set(unschedulable(ws))
	return w.createAlone(ctx, parent, child, obj)
}

// Schedule places a Workspace that waits for a shard, if one may host it now. Its owner is
// the creator of its cluster.
func (w *Workspaces) Schedule(ctx context.Context, parent cluster.Name, name string) error {
	ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, keys.Key{Resource: w.Resource, Cluster: parent, Name: name})
	if err != nil || ws == nil || ws.DeletionTimestamp != nil || ws.Spec.Cluster != "" || ws.Spec.Mount != nil {
		return err
	}
	host, fits := w.host(ws)
	if fits {
		b := w.birth("", metav1.Now())
		b.host, b.at = host, rev
		_, err := w.place(ctx, b, parent, ws, ownerOf(ws))
		return err
	}
	if !ws.Status.Conditions.Set(unschedulable(ws)) {
		return nil
	}
	write, err := w.WorkspaceWrite(parent, ws, rev)
	if err != nil {
		return err
	}
	_, err = w.Store.Commit(ctx, []store.Write{write})
	return err
}

// ownerOf returns the user who created a Workspace, nil if that is not known.
func ownerOf(ws *tenancyapi.Workspace) user.Info {
	var owner core.UserInfo
	if err := json.Unmarshal([]byte(ws.Annotations[tenancyapi.OwnerAnnotation]), &owner); err != nil || owner.Username == "" {
		return nil
	}
	return &user.DefaultInfo{Name: owner.Username, UID: owner.UID, Groups: owner.Groups, Extra: owner.Extra}
}

// Announce creates the Shard of this server in the root workspace, or updates its name and
// addresses.
func (w *Workspaces) Announce(ctx context.Context) error {
	key := keys.Key{Resource: w.ShardResource, Cluster: cluster.Root, Name: string(w.Shard)}
	url := w.BaseURL
	if url == "" {
		url = "https://kcp" // only this process sends requests
	}
	for range retries {
		s, rev, err := read[core.Shard](ctx, w.Store, key)
		if err != nil {
			return err
		}
		if s == nil {
			s = &core.Shard{ObjectMeta: w.birth(cluster.Root, metav1.Now()).meta("", string(w.Shard))}
		}
		spec := core.ShardSpec{BaseURL: url, ExternalURL: url, VirtualWorkspaceURL: url}
		if rev != 0 && s.Spec == spec && s.Labels[core.ShardNameLabel] == string(w.Shard) {
			return nil
		}
		s.Spec, s.Labels = spec, maps.Clone(s.Labels)
		s.Generation++
		setLabel(&s.ObjectMeta, core.ShardNameLabel, string(w.Shard))
		stored, err := values.Unstructured(s, core.GroupVersion.WithKind("Shard"))
		if err != nil {
			return err
		}
		rev, err = w.Store.Commit(ctx, []store.Write{{Resource: key.Resource, Cluster: key.Cluster, Object: stored, Expect: rev}})
		if err == nil {
			return w.Store.Feed().Await(ctx, rev)
		}
		if !Moved(err) && !storage.IsExist(err) {
			return err
		}
	}
	return apierrors.NewServerTimeout(key.Resource.GroupResource(), "update", 1)
}
