package deletion

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/tenancy/removal"
)

// Definitions deletes the instances of definitions that are being deleted, and then
// removes the finalizer of the definitions.
func Definitions(d *define.Definitions, of Instances) control.Loop {
	ending := &endingDefinitions{trigger.New(func() []control.Key { return trigger.Keys(d.AllDeleting()) }), d, of.Store.Feed().Ledger()}
	of.Store.Feed().Follow(ending)
	return control.Loop{
		Name: "definition-deletion",
		Slow: slow,
		On:   trigger.On(of.Store.Feed(), ending.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if !d.Deleting(k.Cluster, k.Name) {
				return nil
			}
			client, err := apiextensionsclient.NewForConfig(of.Client(k.Cluster))
			if err != nil {
				return err
			}
			e := &endingDefinition{instances: of, client: client.CustomResourceDefinitions(), key: k}
			return trigger.UntilChange(e.proceed(ctx))
		},
	}
}

// endingDefinitions finds definitions when their deletion begins, and again when their last
// instance is deleted.
type endingDefinitions struct {
	*trigger.Inbox
	definitions *define.Definitions
	ledger      *feed.Ledger
}

// Apply implements [feed.Follower].
func (f *endingDefinitions) Apply(e feed.Event) {
	name := e.Key.Name
	switch {
	case e.Key.Resource == define.Resource():
	case e.Key.Root == keys.Custom && e.Deleted() && f.ledger.Objects(e.Key.Cluster, e.Key.Resource) == 0:
		name = catalog.DefinitionName(e.Key.GroupResource())
	default:
		return
	}
	if f.definitions.Deleting(e.Key.Cluster, name) {
		f.Put(control.Key{Cluster: e.Key.Cluster, Name: name})
	}
}

// An endingDefinition is a definition that is being deleted.
type endingDefinition struct {
	instances Instances
	client    apiextensionsclient.CustomResourceDefinitionInterface
	key       control.Key
}

func (e *endingDefinition) proceed(ctx context.Context) error {
	crd, err := e.client.Get(ctx, e.key.Name, metav1.GetOptions{})
	if err != nil || crd.DeletionTimestamp == nil || !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return err
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return e.finish(ctx, crd, "NeverEstablished", "resource was never established")
	}
	all := &sweep{Instances: e.instances, cluster: e.key.Cluster, forced: removal.IsForced(crd)}
	resource := keys.CustomResource(catalog.ResourceOfName(crd.Name), "")
	left, err := all.empty(ctx, resource)
	if err != nil {
		return errors.Join(err, e.report(ctx, crd, "InstanceDeletionFailed", "could not issue all deletes: "+err.Error()))
	}
	// No instances can be created any more: the store refuses writes that were admitted
	// by an older version of the definition, and this version is being deleted.
	n, err := e.instances.Store.Count(ctx, e.key.Cluster, resource)
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
	return all.again()
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
