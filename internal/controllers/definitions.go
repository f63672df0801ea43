package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
)

const (
	// deletionsAtOnce is how many custom resources of one definition are deleted at
	// the same time.
	deletionsAtOnce = 16
	// instancesAgain is how soon instances that stay are looked at again, in case that
	// what kept them goes without a trace.
	instancesAgain = time.Minute
)

// DefinitionNames has definitions that could not get their names ask again when
// others of their group have changed.
func DefinitionNames(d Deps) control.Loop {
	waiting := &unsettledDefinitions{newInbox(func() []control.Key { return keys(d.Definitions.Unsettled()) }), d.Definitions}
	d.Store.Spine().Follow(waiting)
	return control.Loop{
		Name: "definition-names",
		On:   []control.Source{waiting.source(d.Store.Spine().Ready())},
		Do: func(ctx context.Context, k control.Key) error {
			client, err := apiextensionsclient.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			// Every write settles what is to settle, one without changes too.
			_, err = client.CustomResourceDefinitions().Patch(ctx, k.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return ignore(err, apierrors.IsNotFound)
		},
	}
}

// unsettledDefinitions finds those that a change of another may help.
type unsettledDefinitions struct {
	*inbox
	definitions *serve.Definitions
}

// Reset implements [store.Follower].
func (*unsettledDefinitions) Reset() {}

// Apply implements [store.Follower].
func (f *unsettledDefinitions) Apply(e store.Event) {
	if e.Key.Resource != serve.CustomResourceDefinitions() {
		return
	}
	for _, k := range keys(f.definitions.UnsettledBeside(e.Key.Cluster, e.Key.Name)) {
		f.put(k)
	}
}

// Done implements [store.Follower].
func (f *unsettledDefinitions) Done() {
	for _, k := range f.all() {
		f.put(k)
	}
}

// DefinitionDeletion deletes the instances of definitions that are being deleted,
// and lets go of the definitions then.
func DefinitionDeletion(d Deps) control.Loop {
	ending := &endingDefinitions{newInbox(func() []control.Key { return keys(d.Definitions.AllDeleting()) }), d}
	d.Store.Spine().Follow(ending)
	return control.Loop{
		Name: "definition-deletion",
		On:   []control.Source{ending.source(d.Store.Spine().Ready())},
		Do: func(ctx context.Context, k control.Key) error {
			if !d.Definitions.Deleting(k.Cluster, k.Name) {
				return nil
			}
			client, err := apiextensionsclient.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			e := &endingDefinition{d, client.CustomResourceDefinitions(), k}
			return ignore(e.proceed(ctx), apierrors.IsNotFound, apierrors.IsConflict) // a change wakes the loop
		},
	}
}

// endingDefinitions finds definitions that are being deleted, and those of them of
// which the last instance has gone.
type endingDefinitions struct {
	*inbox
	deps Deps
}

// Reset implements [store.Follower].
func (*endingDefinitions) Reset() {}

// Apply implements [store.Follower].
func (f *endingDefinitions) Apply(e store.Event) {
	name := e.Key.Name
	switch {
	case e.Key.Resource == serve.CustomResourceDefinitions():
	case e.Key.Root == store.Custom && e.Deleted() && f.deps.Store.Spine().Ledger().Objects(e.Key.Cluster, e.Key.Resource) == 0:
		name = serve.DefinitionName(e.Key.GroupResource())
	default:
		return
	}
	if f.deps.Definitions.Deleting(e.Key.Cluster, name) {
		f.put(control.Key{Cluster: e.Key.Cluster, Name: name})
	}
}

// Done implements [store.Follower].
func (f *endingDefinitions) Done() {
	for _, k := range f.all() {
		f.put(k)
	}
}

// An endingDefinition is one that is being deleted.
type endingDefinition struct {
	deps   Deps
	client apiextensionsclient.CustomResourceDefinitionInterface
	key    control.Key
}

func (e *endingDefinition) proceed(ctx context.Context) error {
	crd, err := e.client.Get(ctx, e.key.Name, metav1.GetOptions{})
	if err != nil || crd.DeletionTimestamp == nil || !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return err
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return e.finish(ctx, crd, "NeverEstablished", "resource was never established")
	}
	resource := store.CustomResource(serve.ResourceOfName(crd.Name), "")
	left, err := e.empty(ctx, resource)
	if err != nil {
		return errors.Join(err, e.report(ctx, crd, "InstanceDeletionFailed", "could not issue all deletes: "+err.Error()))
	}
	// Nothing can be created any more: every write compares the definition that it
	// was admitted by, and this one says that it is going.
	n, err := e.deps.Store.Count(ctx, e.key.Cluster, resource)
	switch {
	case err != nil:
		return err
	case n == 0:
		return e.finish(ctx, crd, "InstanceDeletionCompleted", "removed all instances")
	case left == "":
		return control.After(0) // what came meanwhile
	}
	if err := e.report(ctx, crd, "InstanceDeletionCheck", fmt.Sprintf("could not confirm zero CustomResources remaining: %d left, of which %s", n, left)); err != nil {
		return err
	}
	return control.After(instancesAgain)
}

// report sets why the definition is still there.
func (e *endingDefinition) report(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, reason, message string) error {
	now := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: reason, Message: message}
	if old := apihelpers.FindCRDCondition(crd, now.Type); old != nil && apihelpers.IsCRDConditionEquivalent(old, &now) {
		return nil
	}
	crd = crd.DeepCopy()
	apihelpers.SetCRDCondition(crd, now)
	_, err := e.client.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return err
}

// finish lets go of the definition.
func (e *endingDefinition) finish(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, reason, message string) error {
	crd = crd.DeepCopy()
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse, Reason: reason, Message: message,
	})
	apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	_, err := e.client.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return err
}

// empty deletes the instances, as far as nobody has to do something first, and says
// of one that stays what keeps it. They go where they are stored, so that one which
// cannot be read any more does not keep the others.
func (e *endingDefinition) empty(ctx context.Context, r store.Resource) (left string, err error) {
	err = e.deps.Store.Sweep(ctx, e.key.Cluster, r, func(page []store.Item) error {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var failed error
		places := make(chan struct{}, deletionsAtOnce)
		for _, item := range page {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				why, err := e.delete(ctx, item)
				mu.Lock()
				defer mu.Unlock()
				if failed == nil {
					failed = err
				}
				if left == "" {
					left = why
				}
			})
		}
		wg.Wait()
		return failed
	})
	return left, err
}

// delete deletes one instance, or says what keeps it.
func (e *endingDefinition) delete(ctx context.Context, item store.Item) (why string, err error) {
	if len(item.Metadata.Finalizers) == 0 {
		_, err := e.deps.Store.Commit(ctx, []store.Write{{
			Resource: item.Resource, Cluster: item.Cluster, Expect: item.Revision, Delete: true,
			Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: item.Namespace, Name: item.Name}},
		}})
		return "", ignore(err, apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict)
	}
	if !item.Metadata.Deleting {
		kind, ok := e.deps.Kinds.StoredAs(item.Cluster, item.Resource)
		if !ok {
			return "", fmt.Errorf("%s is not served", item.Key)
		}
		o := object{key: item.Key, uid: item.Metadata.UID, kind: kind, deps: e.deps}
		if err := o.remove(ctx, metav1.DeletePropagationBackground, 0); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s is kept by finalizers %v", objectName(item.Key), item.Metadata.Finalizers), nil
}

func objectName(k store.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}
