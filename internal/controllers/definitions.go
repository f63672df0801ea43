package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/tenancy"
)

const (
	// instancesAgain is the retry interval for remaining instances, for obstacles whose end
	// causes no event.
	instancesAgain = time.Minute
	// unreadableAgain is the retry interval for unreadable instances.
	unreadableAgain = 5 * time.Second
)

// DefinitionNames accepts the names of definitions that conflicted with another definition
// of their group or with a bound API, after that definition or binding has changed.
func DefinitionNames(d Deps) control.Loop {
	waiting := &unsettledDefinitions{newInbox(func() []control.Key { return loopKeys(d.Definitions.Unsettled()) }), d.Definitions}
	d.Store.Feed().Follow(waiting)
	return control.Loop{
		Name: "definition-names",
		On:   d.on(waiting.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			client, err := apiextensionsclient.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			// Each write accepts the names if possible, even a write without changes.
			_, err = client.CustomResourceDefinitions().Patch(ctx, k.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return ignore(err, apierrors.IsNotFound)
		},
	}
}

// unsettledDefinitions finds the definitions with conflicts that a change of another
// definition, or of a binding, may solve.
type unsettledDefinitions struct {
	*inbox
	definitions *serve.Definitions
}

// Apply implements [feed.Follower].
func (f *unsettledDefinitions) Apply(e feed.Event) {
	var freed []keys.Key
	switch e.Key.Resource {
	case serve.CustomResourceDefinitions():
		freed = f.definitions.UnsettledBeside(e.Key.Cluster, e.Key.Name)
	case bind.BindingResource():
		freed = f.definitions.UnsettledIn(e.Key.Cluster)
	}
	for _, k := range loopKeys(freed) {
		f.put(k)
	}
}

// DefinitionDeletion deletes the instances of definitions that are being deleted, and then
// removes the finalizer of the definitions.
func DefinitionDeletion(d Deps) control.Loop {
	ending := &endingDefinitions{newInbox(func() []control.Key { return loopKeys(d.Definitions.AllDeleting()) }), d}
	d.Store.Feed().Follow(ending)
	return control.Loop{
		Name: "definition-deletion",
		On:   d.on(ending.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if !d.Definitions.Deleting(k.Cluster, k.Name) {
				return nil
			}
			client, err := apiextensionsclient.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			e := &endingDefinition{deps: d, client: client.CustomResourceDefinitions(), key: k}
			return untilChange(e.proceed(ctx))
		},
	}
}

// endingDefinitions finds definitions when their deletion begins, and again when their last
// instance is deleted.
type endingDefinitions struct {
	*inbox
	deps Deps
}

// Apply implements [feed.Follower].
func (f *endingDefinitions) Apply(e feed.Event) {
	name := e.Key.Name
	switch {
	case e.Key.Resource == serve.CustomResourceDefinitions():
	case e.Key.Root == keys.Custom && e.Deleted() && f.deps.Store.Feed().Ledger().Objects(e.Key.Cluster, e.Key.Resource) == 0:
		name = serve.DefinitionName(e.Key.GroupResource())
	default:
		return
	}
	if f.deps.Definitions.Deleting(e.Key.Cluster, name) {
		f.put(control.Key{Cluster: e.Key.Cluster, Name: name})
	}
}

// An endingDefinition is a definition that is being deleted.
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
	all := &instances{deps: e.deps, cluster: e.key.Cluster, forced: tenancy.IsForced(crd)}
	resource := keys.CustomResource(serve.ResourceOfName(crd.Name), "")
	left, err := all.empty(ctx, resource)
	if err != nil {
		return errors.Join(err, e.report(ctx, crd, "InstanceDeletionFailed", "could not issue all deletes: "+err.Error()))
	}
	// No instances can be created any more: the store refuses writes that were admitted
	// by an older version of the definition, and this version is being deleted.
	n, err := e.deps.Store.Count(ctx, e.key.Cluster, resource)
	switch {
	case err != nil:
		return err
	case n == 0:
		return e.finish(ctx, crd, "InstanceDeletionCompleted", "removed all instances")
	case left == "":
		return control.After(0) // instances that were created meanwhile
	}
	if err := e.report(ctx, crd, "InstanceDeletionCheck", fmt.Sprintf("could not confirm zero CustomResources remaining: %d left, of which %s", n, left)); err != nil {
		return err
	}
	if all.unreadable {
		return control.After(unreadableAgain)
	}
	return control.After(instancesAgain)
}

// report sets the condition about the remaining instances.
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

// finish removes the finalizer of the definition.
func (e *endingDefinition) finish(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, reason, message string) error {
	crd = crd.DeepCopy()
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse, Reason: reason, Message: message,
	})
	apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	_, err := e.client.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return err
}
