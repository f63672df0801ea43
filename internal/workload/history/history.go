// Package history keeps the revisions of Deployments as ReplicaSets in their workspaces, as the controller of
// Kubernetes does, so that "kubectl rollout history" and "undo" work. It hides how revisions are numbered, which are
// kept, and what their status says. These ReplicaSets go to no physical cluster: each has its own.
package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/profile"
)

const (
	// byOwner is the index of ReplicaSets by the UIDs of their Deployments.
	byOwner = "owner"
	// refused is how long the loop waits after a workspace has refused a ReplicaSet, as with a quota.
	refused = time.Minute
)

// A history keeps the revisions of the Deployments of the consumers of a compute workspace.
type history struct {
	cache             *consumers.Cache
	deployments, sets *consumers.Kind
	pace              objects.Pace
	warn              Warn
}

// Warn says something to the users of a logical cluster, see [objects.Warn].
type Warn func(ctx context.Context, at kcp.ClusterName, w objects.Warning) error

// Loop returns the loop that keeps revisions. Call it once, before the cache is filled.
func Loop(c *consumers.Cache, warn Warn) (kcp.Loop, error) {
	h := &history{cache: c, warn: warn, deployments: c.Kind(profile.Deployments().GroupResource()), sets: c.Kind(profile.ReplicaSets().GroupResource())}
	err := h.sets.Objects.Index(byOwner, func(o *unstructured.Unstructured) []string {
		if !h.sets.IsRevision(o) {
			return nil
		}
		return []string{string(metav1.GetControllerOfNoCopy(o).UID)}
	})
	return kcp.Loop{Name: "workload-history", Workers: 2, Slow: consumers.SlowWrites, Do: h.keep, On: []kcp.Source{
		{Ready: c.Settled()},
		h.deployments.Objects.Changed(),
		h.sets.Objects.Wakes(func(o *unstructured.Unstructured) []kcp.Key {
			if !h.sets.IsRevision(o) {
				return nil
			}
			key := kcp.KeyOf(o)
			key.Name = metav1.GetControllerOfNoCopy(o).Name
			return []kcp.Key{key}
		}),
	}}, err
}

// keep brings the ReplicaSets of a Deployment up to date. It writes once per second at most, so that a template which
// changes more often does not make more revisions.
func (h *history) keep(ctx context.Context, key kcp.Key) error {
	o := h.deployments.Objects.Get(key)
	if o == nil || o.GetDeletionTimestamp() != nil {
		return nil
	}
	d, err := read(o)
	if err != nil {
		return err
	}
	var sets []set
	for _, k := range h.sets.Objects.By(byOwner, string(d.uid)) {
		if s := h.sets.Objects.Get(k); s != nil && k.Cluster == key.Cluster && k.Namespace == key.Namespace && s.GetDeletionTimestamp() == nil {
			sets = append(sets, readSet(s))
		}
	}
	p := decide(d, sets)
	if p.empty() {
		return nil
	}
	if rest := h.pace.Wait(key, time.Now()); rest > 0 {
		return kcp.After(rest)
	}
	err = h.write(ctx, o, p)
	if !refuses(err) {
		return objects.IgnoreGone(err)
	}
	klog.FromContext(ctx).V(2).Info("cannot keep a revision", "err", err)
	if err := h.tell(ctx, o, d.hash, err); err != nil {
		klog.FromContext(ctx).V(2).Info("cannot write an event", "err", err) // the workspace may refuse it, too
	}
	return kcp.After(refused)
}

// refuses reports whether a workspace refuses a revision, also because another object has its name. The server tries again
// later, but not in a namespace that is being deleted.
func refuses(err error) bool {
	return (objects.Refused(err) || apierrors.IsAlreadyExists(err)) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// A failure is a write that failed. Its text is that of Kubernetes.
type failure struct {
	reason, doing string
	error
}

func (f *failure) Error() string { return fmt.Sprintf("Failed to %s: %v", f.doing, f.error) }

func (f *failure) Unwrap() error { return f.error }

// tell makes a refusal an Event of the Deployment, one for each revision. The status says nothing: the Deployment runs
// in the physical clusters all the same.
func (h *history) tell(ctx context.Context, d *unstructured.Unstructured, hash string, err error) error {
	f := (*failure)(nil)
	if !errors.As(err, &f) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the Deployment goes, too
	}
	of := metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))
	return h.warn(ctx, kcp.KeyOf(d).Cluster, objects.Warning{
		About: corev1.ObjectReference{APIVersion: of.APIVersion, Kind: of.Kind, Namespace: d.GetNamespace(), Name: of.Name, UID: of.UID},
		Of:    string(of.UID) + "-" + hash, Reason: f.reason, Message: f.Error(),
	})
}

// write does what is decided.
func (h *history) write(ctx context.Context, d *unstructured.Unstructured, p plan) error {
	key := kcp.KeyOf(d)
	at := engine.ID{GroupResource: h.sets.GroupResource(), Key: key}
	if p.create != nil {
		made, err := p.create.object(d)
		if err != nil {
			return err
		}
		of := at.Beside(at.GroupResource, made.GetName())
		err = h.cache.Create(ctx, of, made)
		if apierrors.IsAlreadyExists(err) {
			switch has := h.sets.Objects.Get(of.Key); {
			case has == nil:
				return kcp.After(time.Second) // the cache has it soon
			case metav1.IsControlledBy(has, d): // it is being deleted, or its users changed it
				return kcp.After(refused)
			}
		}
		if err != nil {
			return &failure{"ReplicaSetCreateError", fmt.Sprintf("create new replica set %q", made.GetName()), err}
		}
	}
	for _, c := range p.changes {
		if err := h.cache.Patch(ctx, at.Beside(at.GroupResource, c.name), c.patch, c.subresource); err != nil {
			return &failure{"ReplicaSetUpdateError", fmt.Sprintf("update replica set %q", c.name), err}
		}
	}
	for _, s := range p.drop {
		if err := h.cache.Delete(ctx, at.Beside(at.GroupResource, s.GetName()), s); err != nil {
			return &failure{"ReplicaSetDeleteError", fmt.Sprintf("delete replica set %q", s.GetName()), err}
		}
	}
	if p.revision == "" {
		return nil
	}
	err := h.cache.Patch(ctx, engine.ID{GroupResource: h.deployments.GroupResource(), Key: key}, annotated(map[string]string{revisionAnnotation: p.revision}), "")
	if err != nil {
		return &failure{"RevisionUpdateError", "set the revision of the deployment", err}
	}
	return nil
}

// object returns the ReplicaSet of a new revision.
func (c *creation) object(d *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	spec, _, err := unstructured.NestedMap(d.Object, "spec") // a copy
	if err != nil {
		return nil, err
	}
	template, _ := spec["template"].(map[string]any)
	selector, _ := spec["selector"].(map[string]any)
	if template == nil || selector == nil {
		return nil, apierrors.NewBadRequest("the Deployment has no template or no selector")
	}
	err = errors.Join(unstructured.SetNestedField(template, c.hash, "metadata", "labels", appsv1.DefaultDeploymentUniqueLabelKey),
		unstructured.SetNestedField(selector, c.hash, "matchLabels", appsv1.DefaultDeploymentUniqueLabelKey))
	if err != nil {
		return nil, err
	}
	labels, _, err := unstructured.NestedMap(template, "metadata", "labels")
	if err != nil {
		return nil, err
	}
	annotations := map[string]any{}
	for k, v := range c.annotations {
		annotations[k] = v
	}
	content := map[string]any{"replicas": int64(c.replicas), "selector": selector, "template": template}
	if ready, ok := spec["minReadySeconds"]; ok {
		content["minReadySeconds"] = ready
	}
	made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": appsv1.SchemeGroupVersion.String(), "kind": "ReplicaSet", "spec": content,
		"metadata": map[string]any{"name": nameOf(d.GetName(), c.hash), "namespace": d.GetNamespace(), "labels": labels, "annotations": annotations}}}
	made.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))})
	return made, nil
}

// nameOf returns the name of a revision. Names have 253 characters at most.
func nameOf(deployment, hash string) string {
	return strings.TrimRight(deployment[:min(len(deployment), 253-1-len(hash))], "-.") + "-" + hash
}
