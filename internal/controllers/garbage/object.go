package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// reporter is the source of events.
const reporter = "garbage-collector-controller"

// conflicts limits the attempts to patch an object that changes concurrently.
const conflicts = 5

// An object is read from the store and written through the API, with admission and
// validation.
type object struct {
	key  keys.Key
	uid  types.UID
	kind catalog.Kind
	of   *Collector
}

// read returns the current metadata of the object and its revision, 0 if it does not exist.
func (o object) read(ctx context.Context) (values.Metadata, int64, error) {
	m, version, err := o.of.store.Metadata(ctx, o.key)
	if m.UID != o.uid {
		version = 0
	}
	return m, version, err
}

func (o object) client() (metadata.ResourceInterface, error) {
	c, err := metadata.NewForConfig(o.of.client(o.key.Cluster))
	if err != nil {
		return nil, err
	}
	r := c.Resource(o.kind.GroupVersionResource())
	if o.key.Namespace == "" {
		return r, nil
	}
	return r.Namespace(o.key.Namespace), nil
}

// remove deletes the object. If version is not 0, the object must have that version.
func (o object) remove(ctx context.Context, how metav1.DeletionPropagation, version int64) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	only := &metav1.Preconditions{UID: &o.uid}
	if version != 0 {
		only.ResourceVersion = new(strconv.FormatInt(version, 10))
	}
	err = c.Delete(ctx, o.key.Name, metav1.DeleteOptions{Preconditions: only, PropagationPolicy: &how})
	return o.failed("delete", err)
}

// failed wraps err with the operation and the object. It returns nil if the object does not
// exist.
func (o object) failed(what string, err error) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, o.key, err)
}

// patch sets the metadata fields that change returns. If change returns none, patch writes
// nothing.
func (o object) patch(ctx context.Context, change func(values.Metadata) map[string]any) error {
	for try := 1; ; try++ {
		live, version, err := o.read(ctx)
		if err != nil || version == 0 {
			return err
		}
		fields := change(live)
		if len(fields) == 0 {
			return nil
		}
		fields["uid"], fields["resourceVersion"] = o.uid, strconv.FormatInt(version, 10)
		body, err := json.Marshal(map[string]any{"metadata": fields})
		if err != nil {
			return err
		}
		c, err := o.client()
		if err != nil {
			return err
		}
		_, err = c.Patch(ctx, o.key.Name, types.MergePatchType, body, metav1.PatchOptions{})
		if !apierrors.IsConflict(err) || try == conflicts {
			return o.failed("patch", err)
		}
	}
}

func (o object) removeFinalizer(ctx context.Context, name string) error {
	return o.patch(ctx, func(m values.Metadata) map[string]any {
		if !slices.Contains(m.Finalizers, name) {
			return nil
		}
		rest := slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == name })
		return map[string]any{"finalizers": rest}
	})
}

// release removes the references to owners from the object.
func (o object) release(ctx context.Context, owners []types.UID) error {
	return o.patch(ctx, func(m values.Metadata) map[string]any {
		rest := slices.DeleteFunc(slices.Clone(m.Owners), func(r metav1.OwnerReference) bool { return slices.Contains(owners, r.UID) })
		if len(rest) == len(m.Owners) {
			return nil
		}
		return map[string]any{"ownerReferences": rest}
	})
}

// unblock clears blockOwnerDeletion in all owner references of the object.
func (o object) unblock(ctx context.Context) error {
	return o.patch(ctx, func(m values.Metadata) map[string]any {
		refs, changed := slices.Clone(m.Owners), false
		for i := range refs {
			if refs[i].BlockOwnerDeletion != nil && *refs[i].BlockOwnerDeletion {
				refs[i].BlockOwnerDeletion, changed = new(false), true
			}
		}
		if !changed {
			return nil
		}
		return map[string]any{"ownerReferences": refs}
	})
}

// reportMisplaced creates events about owners in another namespace, which are ignored. The
// loop retries after errors, such as those of a busy server, until the object is deleted.
func (g *Collector) reportMisplaced(ctx context.Context, o object) error {
	id := objectID{o.key.Cluster, o.uid}
	g.mu.Lock()
	misplaced := g.graph.misplaced(id)
	g.mu.Unlock()
	var errs []error
	for _, r := range misplaced {
		err := o.report(ctx, r)
		if apierrors.IsInvalid(err) {
			klog.FromContext(ctx).Error(err, "Cannot report an owner in another namespace", "resource", o.kind.GroupVersionResource(), "name", o.key.Name)
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("report an owner of %s in another namespace: %w", o.key, err))
			continue
		}
		g.mu.Lock()
		g.graph.reported(id, r)
		g.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (o object) report(ctx context.Context, r reference) error {
	c, err := typedcorev1.NewForConfig(o.of.client(o.key.Cluster))
	if err != nil {
		return err
	}
	namespace := o.key.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.Now()
	apiVersion, kind := o.kind.ToAPIVersionAndKind()
	_, err = c.Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", o.key.Name, time.Now().UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: apiVersion, Kind: kind, Namespace: o.key.Namespace, Name: o.key.Name, UID: o.uid,
		},
		Type: corev1.EventTypeWarning, Reason: "OwnerRefInvalidNamespace",
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			r.apiVersion, r.kind, o.key.Namespace, r.name, r.uid, o.key.Namespace),
		Source: corev1.EventSource{Component: reporter}, ReportingController: reporter,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	return err
}
